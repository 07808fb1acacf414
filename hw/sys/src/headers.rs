//! Compares the declarations with the installed headers by means of a C compiler: the size, alignment and
//! offsets of each type, the numbers, and the signature of each function.

use std::fmt::Write as _;
use std::process::Command;

/// A structure or union.
pub(crate) struct Layout {
    pub kind: &'static str,
    pub name: &'static str,
    pub size: usize,
    pub align: usize,
    /// Name, offset and size.
    pub fields: &'static [(&'static str, usize, usize)],
}

/// A function of a library.
pub(crate) struct Function {
    pub name: &'static str,
    /// The version of its symbol.
    pub version: &'static str,
    pub arguments: &'static [&'static str],
    pub returns: &'static str,
    /// The address of the function in the loaded library, if it has it.
    pub address: fn() -> Option<*const ()>,
}

const HEADERS: [&str; 3] = [
    "infiniband/verbs.h",
    "infiniband/mlx5dv.h",
    "rdma/rdma_cma.h",
];

/// Types without a name in C, or with a different one: types that are anonymous in C have a name in
/// `rdma-sys` and here.
const IN_C: [(&str, &str); 24] = [
    ("addr_union_t", "__typeof__(((struct rdma_addr *)0)->addr)"),
    (
        "atomic_t",
        "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)",
    ),
    (
        "bind_mw_t",
        "__typeof__(((struct ibv_send_wr *)0)->bind_mw)",
    ),
    (
        "ibv_async_event_element_t",
        "__typeof__(((struct ibv_async_event *)0)->element)",
    ),
    (
        "ibv_gid_global_t",
        "__typeof__(((union ibv_gid *)0)->global)",
    ),
    ("mlx5dv_bf", "__typeof__(((struct mlx5dv_qp *)0)->bf)"),
    ("mlx5dv_obj_ah", "__typeof__(((struct mlx5dv_obj *)0)->ah)"),
    ("mlx5dv_obj_cq", "__typeof__(((struct mlx5dv_obj *)0)->cq)"),
    (
        "mlx5dv_obj_other",
        "__typeof__(((struct mlx5dv_obj *)0)->dm)",
    ),
    ("mlx5dv_obj_pd", "__typeof__(((struct mlx5dv_obj *)0)->pd)"),
    ("mlx5dv_obj_qp", "__typeof__(((struct mlx5dv_obj *)0)->qp)"),
    (
        "mlx5dv_obj_srq",
        "__typeof__(((struct mlx5dv_obj *)0)->srq)",
    ),
    ("mlx5dv_ring", "__typeof__(((struct mlx5dv_qp *)0)->sq)"),
    ("param_t", "__typeof__(((struct rdma_cm_event *)0)->param)"),
    (
        "qp_type_t",
        "__typeof__(((struct ibv_send_wr *)0)->qp_type)",
    ),
    ("rdma_t", "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)"),
    ("tso_t", "__typeof__(((struct ibv_send_wr *)0)->tso)"),
    ("ud_t", "__typeof__(((struct ibv_send_wr *)0)->wr.ud)"),
    ("wr_t", "__typeof__(((struct ibv_send_wr *)0)->wr)"),
    (
        "xrc_t",
        "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)",
    ),
    // Unions without a name, whose fields are checked in the enclosing type.
    ("bind_mw_tso_union_t", ""),
    ("dst_addr_union_t", ""),
    ("imm_data_invalidated_rkey_union_t", ""),
    ("src_addr_union_t", ""),
];

/// Fields that are anonymous unions, each with one of their members; and fields whose name is reserved in
/// Rust.
const FIELDS: [(&str, &str); 6] = [
    ("bind_mw_tso_union", "bind_mw"),
    ("dst_addr_union", "dst_storage"),
    ("imm_data_invalidated_rkey_union", "imm_data"),
    ("priv_", "priv"),
    ("src_addr_union", "src_storage"),
    ("type_", "type"),
];

/// Types that newer libraries extend at the end.
const GROW: [&str; 6] = [
    "ibv_qp_ex",
    "ibv_cq_ex",
    "mlx5dv_qp",
    "mlx5dv_cq",
    "mlx5dv_srq",
    "mlx5dv_obj",
];

/// The type that newer libraries extend at the front: it is accessed from its end.
const GROWS_IN_FRONT: &str = "verbs_context";

/// An expression for the C compiler, and its expected value.
struct Question {
    expression: String,
    expected: usize,
    /// A larger value is correct as well.
    or_more: bool,
}

fn c_name(layout: &Layout) -> Option<String> {
    match IN_C.iter().find(|(name, _)| *name == layout.name) {
        Some((_, "")) => None,
        Some((_, name)) => Some((*name).to_owned()),
        None => Some(format!("{} {}", layout.kind, layout.name)),
    }
}

fn questions_of(layout: &Layout, questions: &mut Vec<Question>) {
    let Some(name) = c_name(layout) else { return };
    let in_front = layout.name == GROWS_IN_FRONT;
    let or_more = in_front || GROW.contains(&layout.name);
    let mut ask = |expression, expected, or_more| {
        questions.push(Question {
            expression,
            expected,
            or_more,
        });
    };
    ask(format!("sizeof({name})"), layout.size, or_more);
    ask(format!("_Alignof({name})"), layout.align, false);
    for (field, offset, size) in layout.fields {
        let known = FIELDS.iter().find(|(ours, _)| ours == field);
        let field = known.map_or(*field, |(_, c)| c).trim_start_matches("r#");
        match in_front {
            true => ask(
                format!("sizeof({name}) - offsetof({name}, {field})"),
                layout.size - offset,
                false,
            ),
            false => ask(format!("offsetof({name}, {field})"), *offset, false),
        }
        ask(format!("sizeof((({name} *)0)->{field})"), *size, false);
    }
}

/// The C type for a Rust type of a signature.
fn c_type(ty: &str) -> String {
    let ty = ty.trim();
    if let Some(of) = ty.strip_prefix("*mut ") {
        return format!("{} *", c_type(of));
    }
    if let Some(of) = ty.strip_prefix("*const ") {
        return format!("const {} *", c_type(of));
    }
    if let Some(of) = ty.strip_suffix("::Type") {
        return format!("enum {of}");
    }
    let plain = match ty {
        "()" | "c_void" => "void",
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "u8" => "uint8_t",
        "u16" => "uint16_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "bool" => "bool",
        "__be16" => "__be16",
        "ibv_gid" => "union ibv_gid",
        _ => return format!("struct {ty}"),
    };
    plain.to_owned()
}

fn check_of(function: &Function) -> String {
    let arguments: Vec<_> = function.arguments.iter().map(|ty| c_type(ty)).collect();
    let arguments = match &arguments[..] {
        [] => "void".to_owned(),
        arguments => arguments.join(", "),
    };
    let (name, returns) = (function.name, c_type(function.returns));
    format!("{returns} (*check_{name})({arguments}) = {name};\n")
}

fn types() -> impl Iterator<Item = &'static Layout> {
    let all = [
        crate::ibverbs::TYPES,
        crate::ibverbs::BY_HAND,
        crate::rdmacm::TYPES,
        crate::mlx5dv::TYPES,
    ];
    all.into_iter().flatten()
}

fn numbers() -> impl Iterator<Item = (&'static str, u64)> {
    let by_hand = [
        (
            "IBV_GID_TYPE_ROCE_V2",
            crate::ibverbs::IBV_GID_TYPE_ROCE_V2.into(),
        ),
        (
            "IBV_LINK_LAYER_ETHERNET",
            crate::ibverbs::IBV_LINK_LAYER_ETHERNET.into(),
        ),
        (
            "-IBV_REREG_MR_ERR_DO_FORK_OLD",
            -crate::ibverbs::IBV_REREG_MR_ERR_DO_FORK_OLD as u64,
        ),
        ("MLX5DV_RES_TYPE_QP", crate::mlx5dv::resource::QP),
        ("MLX5DV_RES_TYPE_DBR", crate::mlx5dv::resource::DBR),
        ("MLX5DV_RES_TYPE_SRQ", crate::mlx5dv::resource::SRQ),
        ("MLX5_CQ_DOORBELL", crate::mlx5dv::CQ_DOORBELL as u64),
        ("sizeof(struct mlx5_wqe_av)", crate::mlx5dv::WQE_AV as u64),
    ];
    let all = [
        crate::ibverbs::NUMBERS,
        crate::rdmacm::NUMBERS,
        crate::mlx5dv::NUMBERS,
    ];
    all.into_iter().flatten().copied().chain(by_hand)
}

fn functions() -> impl Iterator<Item = &'static Function> {
    let all = [
        crate::ibverbs::FUNCTIONS_OF_C,
        crate::rdmacm::FUNCTIONS_OF_C,
        crate::mlx5dv::FUNCTIONS_OF_C,
    ];
    all.into_iter().flatten()
}

/// Compiles and runs a C program that evaluates the expressions, after lines that have to compile.
fn answers(checks: &str, expressions: &[String]) -> Vec<usize> {
    let mut program = "#include <stddef.h>\n#include <stdio.h>\n".to_owned();
    for header in HEADERS {
        writeln!(program, "#include <{header}>").unwrap();
    }
    program.push_str(checks);
    program.push_str("int main(void) {\n");
    for expression in expressions {
        writeln!(program, "printf(\"%zu\\n\", (size_t)({expression}));").unwrap();
    }
    program.push_str("return 0; }\n");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("check.c"), program).expect("written");
    let mut compile = Command::new("cc");
    compile.args(["-Werror", "-w", "-Werror=incompatible-pointer-types"]);
    compile.arg(path("check.c")).arg("-o").arg(path("check"));
    compile.args(["-libverbs", "-lrdmacm", "-lmlx5"]);
    let compiled = compile.status().expect("a C compiler");
    assert!(
        compiled.success(),
        "see above; it needs libibverbs-dev, librdmacm-dev and ibverbs-providers"
    );
    let output = Command::new(path("check")).output().expect("it runs");
    let output = String::from_utf8(output.stdout).expect("numbers");
    let numbers: Vec<_> = output.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers.len(), expressions.len());
    numbers
}

#[test]
fn types_are_those_of_c() {
    let mut questions = Vec::new();
    types().for_each(|layout| questions_of(layout, &mut questions));
    for (name, value) in numbers() {
        questions.push(Question {
            expression: name.to_owned(),
            expected: value as usize,
            or_more: false,
        });
    }
    let expressions: Vec<_> = questions.iter().map(|one| one.expression.clone()).collect();
    for (question, found) in questions.iter().zip(answers("", &expressions)) {
        let right = found == question.expected || question.or_more && found > question.expected;
        assert!(
            right,
            "{}: {found} in C, {} here",
            question.expression, question.expected
        );
    }
}

/// Each function is assigned to a pointer of the type declared here.
#[test]
fn functions_are_those_of_c() {
    let is_in_headers = |function: &&Function| !function.version.is_empty();
    let checks: String = functions().filter(is_in_headers).map(check_of).collect();
    answers(&checks, &[]);
}

/// Most functions also have older versions with the same name.
#[test]
fn symbols_are_of_the_newest_version() {
    crate::load().expect("the libraries are installed");
    for function in functions().filter(|function| !function.version.is_empty()) {
        let library = match function.version.split('_').next() {
            Some("IBVERBS") => c"libibverbs.so.1",
            Some("RDMACM") => c"librdmacm.so.1",
            _ => c"libmlx5.so.1",
        };
        let text = |text: &str| std::ffi::CString::new(text).expect("no zero");
        let (name, version) = (text(function.name), text(function.version));
        // SAFETY: all strings are NUL-terminated; the library is loaded already.
        let there = unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD);
            libc::dlvsym(library, name.as_ptr(), version.as_ptr())
        };
        assert_eq!(
            (function.address)(),
            Some(there.cast_const().cast()),
            "{}",
            function.name
        );
    }
}
