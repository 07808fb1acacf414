//! Sizes and offsets, as a C compiler sees them.

use super::*;
use crate::verbs::layouts;

layouts! {
    "struct mlx5dv_qp" Qp {
        "dbrec" dbrec, "sq.buf" sq.buf, "sq.wqe_cnt" sq.wqe_cnt, "sq.stride" sq.stride,
        "rq.buf" rq.buf, "rq.wqe_cnt" rq.wqe_cnt, "rq.stride" rq.stride,
        "bf.reg" bf.reg, "bf.size" bf.size, "comp_mask" comp_mask,
        "uar_mmap_offset" uar_mmap_offset, "tirn" tirn, "tisn" tisn, "rqn" rqn, "sqn" sqn,
        "tir_icm_addr" tir_icm_addr,
    };
    "struct mlx5dv_cq" Cq {
        "buf" buf, "dbrec" dbrec, "cqe_cnt" cqe_cnt, "cqe_size" cqe_size, "cq_uar" cq_uar,
        "cqn" cqn, "comp_mask" comp_mask,
    };
    "struct mlx5dv_srq" Srq {
        "buf" buf, "dbrec" dbrec, "stride" stride, "head" head, "tail" tail,
        "comp_mask" comp_mask, "srqn" srqn,
    };
    "struct mlx5dv_ah" Ah { "av" av, "comp_mask" comp_mask };
    "struct mlx5dv_obj" Obj {
        "qp.in" qp.r#in, "qp.out" qp.out, "cq.in" cq.r#in, "cq.out" cq.out,
        "srq.in" srq.r#in, "srq.out" srq.out, "rwq.in" rwq.r#in, "dm.in" dm.r#in,
        "ah.in" ah.r#in, "ah.out" ah.out, "pd.in" pd.r#in,
    };
    "struct ibv_parent_domain_init_attr" sys::ibv_parent_domain_init_attr {
        "pd" pd, "td" td, "comp_mask" comp_mask, "alloc" alloc, "free" free,
        "pd_context" pd_context,
    };
    "struct verbs_context" sys::verbs_context {
        "alloc_td" alloc_td, "dealloc_td" dealloc_td, "alloc_parent_domain" alloc_parent_domain,
    };
}

#[test]
fn layouts_and_numbers_are_those_of_c() {
    let mut expected = layouts();
    let numbers = [
        ("MLX5DV_OBJ_QP", obj_type::QP),
        ("MLX5DV_OBJ_CQ", obj_type::CQ),
        ("MLX5DV_OBJ_SRQ", obj_type::SRQ),
        ("MLX5DV_OBJ_AH", obj_type::AH),
        ("MLX5DV_RES_TYPE_QP", resource::QP),
        ("MLX5DV_RES_TYPE_DBR", resource::DBR),
        ("MLX5DV_RES_TYPE_SRQ", resource::SRQ),
        ("MLX5_CQ_DOORBELL", CQ_DOORBELL as u64),
        (
            "sizeof(struct mlx5_wqe_av)",
            size_of::<AddressVector>() as u64,
        ),
    ];
    expected.extend(numbers.map(|(name, number)| (name.to_owned(), number as usize)));
    crate::verbs::compare_layouts(&["infiniband/verbs.h", "infiniband/mlx5dv.h"], &expected);
}
