//! What there is to measure on: what ibv_devinfo(1) shows, as far as the device reports it.

use anyhow::Result;
use bellwire::{Device, DeviceAttr, PortAttr};
use serde::{Serialize, Serializer};
use serde_json::Value;
use std::fmt;
use std::net::Ipv6Addr;

/// A device.
#[derive(Debug, Serialize)]
struct Listed {
    name: String,
    description: String,
    /// Its limits, by their names in the verbs.
    attr: Fields,
    ports: Vec<Port>,
    /// Why there are no ports: it could not be opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A port, and what its tables hold.
#[derive(Debug, Serialize)]
struct Port {
    port_num: u8,
    #[serde(flatten)]
    attr: Fields,
    gids: Vec<Gid>,
    pkeys: Vec<Pkey>,
}

/// An entry of the GID table.
#[derive(Debug, Serialize)]
struct Gid {
    index: u16,
    gid: Ipv6Addr,
}

/// An entry of the partition key table.
#[derive(Debug, Serialize)]
struct Pkey {
    index: u16,
    pkey: u16,
}

/// Names and values, in this order.
#[derive(Debug)]
struct Fields(Vec<(&'static str, Value)>);

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

macro_rules! fields {
    ($of:expr; $($field:ident),*) => {
        [$((stringify!($field), Value::from($of.$field))),*]
    };
}

fn limits(attr: &DeviceAttr) -> Fields {
    Fields(
        fields!(attr; max_qp, max_qp_wr, max_sge, max_inline_data, max_cqe, max_mr, max_mw,
            max_mr_size, max_msg_sz, max_qp_rd_atom, max_srq, max_srq_wr, max_srq_sge,
            max_mcast_qp_attach, max_pkeys, phys_port_cnt)
        .into(),
    )
}

fn port(attr: &PortAttr) -> Fields {
    let mut shown = vec![
        ("state", format!("{:?}", attr.state).to_lowercase().into()),
        ("max_mtu", attr.max_mtu.bytes().into()),
        ("active_mtu", attr.active_mtu.bytes().into()),
    ];
    shown.extend(fields!(attr; lid, sm_lid, max_msg_sz, gid_tbl_len, pkey_tbl_len));
    Fields(shown)
}

impl Port {
    fn find(device: &Device, port_num: u8) -> Result<Self> {
        let attr = device.query_port(port_num)?;
        // Of most entries of a table there is nothing to say: they are empty, or have no value.
        let gid = |index| {
            let gid = device.query_gid(port_num, index).ok()?;
            (gid != [0; 16]).then(|| Gid {
                index,
                gid: gid.into(),
            })
        };
        let pkey = |index| {
            let pkey = device.query_pkey(port_num, index).ok()?;
            (pkey != 0).then_some(Pkey { index, pkey })
        };
        Ok(Self {
            port_num,
            gids: (0..attr.gid_tbl_len).filter_map(gid).collect(),
            pkeys: (0..attr.pkey_tbl_len).filter_map(pkey).collect(),
            attr: port(&attr),
        })
    }
}

impl Listed {
    /// A device by the name that opens it.
    fn find(name: &str, description: String, attr: &DeviceAttr) -> Self {
        let ports = || {
            let device = Device::open(name)?;
            let numbers = 1..=attr.phys_port_cnt;
            numbers
                .map(|number| Port::find(&device, number))
                .collect::<Result<Vec<_>>>()
        };
        let (ports, error) = match ports() {
            Ok(ports) => (ports, None),
            Err(error) => (Vec::new(), Some(format!("{error:#}"))),
        };
        Self {
            name: name.to_owned(),
            description,
            attr: limits(attr),
            ports,
            error,
        }
    }

    /// Whether all of it could be found out.
    fn is_whole(&self) -> bool {
        self.error.is_none()
    }
}

/// Why a source has no device, or not this one.
#[derive(Debug, Serialize)]
struct Absent {
    source: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    device: Option<String>,
    why: String,
}

impl From<&bellwire::sources::Absent> for Absent {
    fn from(absent: &bellwire::sources::Absent) -> Self {
        Self {
            source: absent.source.to_string(),
            device: absent.device.clone(),
            why: absent.cause.to_string(),
        }
    }
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            source,
            device,
            why,
        } = self;
        match device {
            Some(device) => write!(f, "{device}: not there ({source}): {why}"),
            None => write!(f, "{source}: no devices: {why}"),
        }
    }
}

/// The fields that are shown.
#[derive(Debug, Serialize)]
pub struct Listing {
    devices: Vec<Listed>,
    /// Why there are no others; of a device that was named, nothing.
    absent: Vec<Absent>,
}

impl Listing {
    /// All that there are.
    pub fn all() -> Self {
        let found = Device::list();
        let devices = found.devices.into_iter();
        Self {
            devices: devices
                .map(|info| Listed::find(&info.name, info.description, &info.attr))
                .collect(),
            absent: found.absent.iter().map(Absent::from).collect(),
        }
    }

    /// This one, which is open.
    pub fn one(device: &Device) -> Self {
        let listed = Listed::find(device.name(), description(device), &device.attr());
        Self {
            devices: vec![listed],
            absent: Vec::new(),
        }
    }

    /// Whether all of each device could be found out.
    pub fn is_whole(&self) -> bool {
        self.devices.iter().all(Listed::is_whole)
    }
}

impl fmt::Display for Listing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = self.devices.iter().map(ToString::to_string);
        let absent = self.absent.iter().map(ToString::to_string);
        let lines: Vec<_> = devices.chain(absent).collect();
        f.write_str(&lines.join("\n"))
    }
}

/// What a device is, for people.
pub fn description(device: &Device) -> String {
    let mut listed = Device::list().devices.into_iter();
    let listed = listed.find(|info| info.name == device.name());
    match listed {
        Some(info) => info.description,
        None if device.name().starts_with("soft:") => {
            "software HCA, a node of this fabric".to_owned()
        }
        None => String::new(),
    }
}

/// A value as people read it.
fn text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

impl fmt::Display for Listed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.description)?;
        for (name, value) in &self.attr.0 {
            write!(f, "\n  {name:<21} {}", text(value))?;
        }
        if let Some(error) = &self.error {
            write!(f, "\n  cannot be opened: {error}")?;
        }
        for port in &self.ports {
            write!(f, "\n  port {}", port.port_num)?;
            for (name, value) in &port.attr.0 {
                write!(f, "\n    {name:<19} {}", text(value))?;
            }
            for Gid { index, gid } in &port.gids {
                write!(f, "\n    gid {index:<15} {gid}")?;
            }
            for Pkey { index, pkey } in &port.pkeys {
                write!(f, "\n    pkey {index:<14} {pkey:#06x}")?;
            }
        }
        Ok(())
    }
}
