//! Two queue pairs of one process, connected with each other.

use anyhow::Result;
use bellwire::{AccessFlags, ConnectAttr, Cq, Pd, Qp, QpInit};

/// Everything that a peer may do.
pub const ALL_ACCESS: AccessFlags = AccessFlags::LOCAL_WRITE
    .union(AccessFlags::REMOTE_WRITE)
    .union(AccessFlags::REMOTE_READ)
    .union(AccessFlags::REMOTE_ATOMIC);

/// One end of a connection. Sends and receives complete on queues of their own, so that waiting for
/// a message does not mean sorting out the completions of what was sent.
#[derive(Debug)]
pub struct End {
    /// The queue pair.
    pub qp: Qp,
    /// Where its sends complete.
    pub send_cq: Cq,
    /// Where its receives complete.
    pub recv_cq: Cq,
}

impl End {
    fn new(pd: &Pd, init: &QpInit) -> Result<Self> {
        let (sends, recvs) = init.cq_entries();
        let mut send_cq = pd.device().create_cq(sends)?;
        let mut recv_cq = pd.device().create_cq(recvs)?;
        let qp = pd.create_qp((&mut send_cq, &mut recv_cq), init)?;
        Ok(Self {
            qp,
            send_cq,
            recv_cq,
        })
    }
}

/// Two ends, connected and ready to send.
///
/// # Errors
/// Those of creating and connecting queue pairs.
pub fn connected(pd: &Pd, init: &QpInit) -> Result<(End, End)> {
    let (mut a, mut b) = (End::new(pd, init)?, End::new(pd, init)?);
    let connect = ConnectAttr::default();
    a.qp.init(&connect)?;
    b.qp.init(&connect)?;
    a.qp.connect(&b.qp.endpoint(), &connect)?;
    b.qp.connect(&a.qp.endpoint(), &connect)?;
    Ok((a, b))
}
