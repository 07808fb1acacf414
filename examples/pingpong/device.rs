//! Whether the game can be played on the device.

use super::args::{Game, Kind};
use anyhow::{Result, ensure};
use bellwire::{Device, PortState, ProviderKind};

/// Opens it.
///
/// # Errors
/// When there is none of that name, or it reaches nobody.
pub fn open(game: &Game) -> Result<Device> {
    let device = Device::open(&game.device)?;
    ensure!(
        device.name() != "soft",
        "the device soft is within one process: give -d soft:NAME, the same to both sides"
    );
    check_depth(&device, game)?;
    Ok(device)
}

/// Whether the device has as many receives.
fn check_depth(device: &Device, game: &Game) -> Result<()> {
    let attr = device.attr();
    let most = match game.kind {
        Kind::Srq => attr.max_srq_wr,
        _ => attr.max_qp_wr,
    };
    ensure!(
        game.rx_depth <= most,
        "a queue has {most} receives at the most: lower -r"
    );
    Ok(())
}

/// The LID and GID by which the port is to be reached.
///
/// # Errors
/// When the game cannot be played on it.
pub fn addresses(device: &Device, game: &Game) -> Result<(u16, [u8; 16])> {
    let number = game.ib_port;
    let port = device.query_port(number)?;
    ensure!(
        port.state == PortState::Active,
        "port {number} of {} is not active: bring its link up, or take another by -i",
        device.name()
    );
    let gid = match game.gid_idx {
        Some(index) => device.query_gid(number, index.into())?,
        // rdma-core's programs have no such device. Its LIDs are those of other fabrics, too.
        None if device.provider() == ProviderKind::Soft => device.query_gid(number, 0)?,
        None => [0; 16],
    };
    ensure!(
        game.gid_idx.is_none() || gid != [0; 16],
        "the GID of that index is not set: `perf devices` lists those that are"
    );
    ensure!(
        port.lid != 0 || game.gid_idx.is_some(),
        "port {number} of {} has no LID (RoCE): give the index of a GID by -g, `perf devices` \
         lists them",
        device.name()
    );
    let largest = port.active_mtu.bytes();
    match game.kind {
        Kind::Ud => ensure!(
            game.size <= largest,
            "a datagram has {largest} bytes at the most on this port: lower -s"
        ),
        _ => ensure!(
            game.mtu <= port.active_mtu,
            "the port's MTU is {largest}: lower -m"
        ),
    }
    ensure!(
        u64::from(game.size) <= port.max_msg_sz,
        "a message has {} bytes at the most: lower -s",
        port.max_msg_sz
    );
    Ok((port.lid, gid))
}
