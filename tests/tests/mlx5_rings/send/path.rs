//! Address vectors, from the attributes of their paths.

use bellwire_core::be::{Be16, Be32};
use bellwire_core::wqe::AddressVector;
use bellwire_tests::vectors::{Row, to_hex};
use std::error::Error;

/// The device's code of a rate of `ibv_rate`: that of the next InfiniBand rate from 2.5 to 120 Gb/s which is not
/// slower, and 0, no limit, for higher rates and for what is not a rate.
///
/// libmlx5 takes 60 Gb/s for 56, 120 for 100 and 112, and 20 for 14.
fn rate_code(rate: u8) -> u8 {
    const GBPS_20: u8 = 11;
    const GBPS_30: u8 = 9;
    const GBPS_60: u8 = 13;
    const GBPS_120: u8 = 15;
    match rate {
        2..=10 => rate + 5,
        // 14 Gb/s.
        11 => GBPS_20,
        // 25 and 28 Gb/s.
        15 | 19 => GBPS_30,
        // 56 and 50 Gb/s.
        12 | 20 => GBPS_60,
        // 112 and 100 Gb/s.
        13 | 16 => GBPS_120,
        _ => 0,
    }
}

/// Checks that core's layout puts the attributes of a row where the driver does.
pub fn check(row: &Row) -> Result<(), Box<dyn Error>> {
    let ethernet = row.str("link")? == "eth";
    let global = row.int::<u8>("is_global")? != 0;
    let sl: u8 = row.int("sl")?;
    let rate = rate_code(row.int("static_rate")?);
    let flow_label: u32 = row.int("flow_label")?;
    let recorded = row.bytes::<48>("av")?;
    let mut vector = AddressVector::default();
    if ethernet {
        vector.stat_rate_sl = rate << 4 | (sl & 7) << 1;
        vector.rmac = row.bytes("dmac")?;
        if row.int::<u8>("roce_v2")? != 0 {
            // The source port carries the flow label (IBTA annex A17). Without a flow label the driver draws a port.
            let port = match flow_label {
                0 => u16::from_be_bytes([recorded[14], recorded[15]]),
                _ => (flow_label & 0x3fff ^ flow_label >> 14) as u16,
            };
            vector.rlid = Be16::new(port | 0xc000);
        }
    } else {
        vector.stat_rate_sl = rate << 4 | sl;
        vector.fl_mlid = row.int::<u8>("src_path_bits")? & 0x7f;
        vector.rlid = Be16::new(row.int("dlid")?);
    }
    if global {
        vector.tclass = row.int("tclass")?;
        vector.hop_limit = row.int("hop_limit")?;
        let index: u32 = row.int("sgid_index")?;
        let present = if ethernet { 0 } else { 1 << 30 };
        vector.grh_gid_fl = Be32::new(present | index << 20 | flow_label);
        vector.rgid = row.bytes("dgid")?;
    }
    // SAFETY: 48 bytes without padding.
    let ours: [u8; 48] = unsafe { std::mem::transmute(vector) };
    if ours != recorded {
        return Err(format!("core\n{}, the row\n{}", to_hex(&ours), to_hex(&recorded)).into());
    }
    Ok(())
}
