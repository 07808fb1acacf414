//! Versions of symbols, and which rdma-core brought them: what `debian/*.symbols` of rdma-core has.

/// Those that a library must have: the oldest that rdma-core itself has published.
const REQUIRED: u32 = 0;

/// Name, version, and the rdma-core that brought it.
const LATER: [(&str, &str, u32); 11] = [
    ("_ibv_query_gid_ex", "IBVERBS_1.11", 32),
    ("ibv_create_comp_channel", "IBVERBS_1.0", REQUIRED),
    ("ibv_destroy_comp_channel", "IBVERBS_1.0", REQUIRED),
    ("ibv_get_device_index", "IBVERBS_1.9", 30),
    ("ibv_qp_to_qp_ex", "IBVERBS_1.6", 24),
    ("ibv_reg_dmabuf_mr", "IBVERBS_1.12", 34),
    ("ibv_reg_mr_iova", "IBVERBS_1.7", 25),
    ("ibv_reg_mr_iova2", "IBVERBS_1.8", 28),
    ("rdma_establish", "RDMACM_1.2", 23),
    ("rdma_init_qp_attr", "RDMACM_1.2", 23),
    ("rdma_join_multicast_ex", "RDMACM_1.1", 16),
];

/// `required`, or since which rdma-core there is one.
pub fn since(name: &str) -> String {
    match later(name) {
        Some((_, REQUIRED)) | None => "required".to_owned(),
        Some((_, since)) => format!("since({since})"),
    }
}

/// The version of a symbol.
pub fn version(name: &str) -> &'static str {
    match later(name) {
        Some((version, _)) => version,
        None if name.starts_with("rdma_") => "RDMACM_1.0",
        None => "IBVERBS_1.1",
    }
}

fn later(name: &str) -> Option<(&'static str, u32)> {
    let of = LATER.iter().find(|(later, ..)| *later == name)?;
    Some((of.1, of.2))
}
