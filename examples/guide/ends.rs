//! Two connected queue pairs of one process, which several chapters begin with.

use crate::Result;
use bellwire::{ConnectAttr, Cq, Pd, Qp, QpInit};

/// A queue pair and its completion queue.
pub struct End {
    pub qp: Qp,
    pub cq: Cq,
}

/// Two ends that are connected with each other.
pub fn two(pd: &Pd) -> Result<(End, End)> {
    let init = QpInit::default();
    let (sends, receives) = init.cq_entries();
    let end = || {
        let mut cq = pd.device().create_cq(sends + receives)?;
        let qp = pd.create_qp(&mut cq, &init)?;
        Ok::<_, bellwire::Error>(End { qp, cq })
    };
    let (mut a, mut b) = (end()?, end()?);
    let connect = ConnectAttr::default();
    a.qp.init(&connect)?;
    b.qp.init(&connect)?;
    a.qp.connect(&b.qp.endpoint(), &connect)?;
    b.qp.connect(&a.qp.endpoint(), &connect)?;
    Ok((a, b))
}
