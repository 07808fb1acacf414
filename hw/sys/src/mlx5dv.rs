//! libmlx5 (`infiniband/mlx5dv.h`): access to the rings of a ConnectX device. Declared by hand, because
//! `rdma-sys` does not have it.

use crate::ibverbs::{ibv_ah, ibv_cq, ibv_device, ibv_pd, ibv_qp, ibv_srq};
use std::ffi::{c_int, c_void};

types! {
    struct mlx5dv_ring {
        buf: *mut u8,
        wqe_cnt: u32,
        stride: u32,
    }
    struct mlx5dv_bf {
        reg: *mut u64,
        size: u32,
    }
    struct mlx5dv_qp {
        dbrec: *mut u32,
        sq: mlx5dv_ring,
        rq: mlx5dv_ring,
        bf: mlx5dv_bf,
        comp_mask: u64,
        uar_mmap_offset: libc::off_t,
        tirn: u32,
        tisn: u32,
        rqn: u32,
        sqn: u32,
        tir_icm_addr: u64,
    }
    struct mlx5dv_cq {
        buf: *mut u8,
        dbrec: *mut u32,
        cqe_cnt: u32,
        cqe_size: u32,
        cq_uar: *mut u8,
        cqn: u32,
        comp_mask: u64,
    }
    struct mlx5dv_srq {
        buf: *mut u8,
        dbrec: *mut u32,
        stride: u32,
        head: u32,
        tail: u32,
        comp_mask: u64,
        srqn: u32,
    }
    struct mlx5dv_ah {
        av: *mut c_void,
        comp_mask: u64,
    }
    struct mlx5dv_obj_qp {
        r#in: *mut ibv_qp,
        out: *mut mlx5dv_qp,
    }
    struct mlx5dv_obj_cq {
        r#in: *mut ibv_cq,
        out: *mut mlx5dv_cq,
    }
    struct mlx5dv_obj_srq {
        r#in: *mut ibv_srq,
        out: *mut mlx5dv_srq,
    }
    struct mlx5dv_obj_ah {
        r#in: *mut ibv_ah,
        out: *mut mlx5dv_ah,
    }
    struct mlx5dv_obj_pd {
        r#in: *mut ibv_pd,
        out: *mut c_void,
    }
    struct mlx5dv_obj_other {
        r#in: *mut c_void,
        out: *mut c_void,
    }
    struct mlx5dv_obj {
        qp: mlx5dv_obj_qp,
        cq: mlx5dv_obj_cq,
        srq: mlx5dv_obj_srq,
        rwq: mlx5dv_obj_other,
        dm: mlx5dv_obj_other,
        ah: mlx5dv_obj_ah,
        pd: mlx5dv_obj_pd,
    }
}

numbers! {
    mod mlx5dv_obj_type {
        MLX5DV_OBJ_QP = 1,
        MLX5DV_OBJ_CQ = 2,
        MLX5DV_OBJ_SRQ = 4,
        MLX5DV_OBJ_AH = 32,
    }
}

functions! {
    "libmlx5.so.1" "mlx5" needs ibverbs;
    required "MLX5_1.2" fn mlx5dv_init_obj(obj: *mut mlx5dv_obj, obj_type: u64) -> c_int;
    required "MLX5_1.8" fn mlx5dv_is_supported(device: *mut ibv_device) -> bool;
    since(33) "MLX5_1.17" fn mlx5dv_modify_qp_udp_sport(qp: *mut ibv_qp, udp_sport: u16) -> c_int;
}

/// `MLX5DV_RES_TYPE_*`: the kind of memory that the allocator of a parent domain is asked for.
pub mod resource {
    const MLX5: u64 = 1 << 32;
    pub const QP: u64 = MLX5 | 1;
    pub const DBR: u64 = MLX5 | 3;
    pub const SRQ: u64 = MLX5 | 4;
}

/// `MLX5_CQ_DOORBELL`: offset, within its page, of the register that arms completion queues.
pub const CQ_DOORBELL: usize = 0x20;

/// Size of `struct mlx5_wqe_av` in bytes.
pub const WQE_AV: usize = 48;
