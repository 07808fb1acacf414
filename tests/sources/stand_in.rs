//! The host's libibverbs with something taken from it, on the stand-in for the kernel.

use crate::host::{Host, alone_and_unknown};
use crate::tests;
use bellwire_tests::library::{Library, NAME};
use serde_json::Value;

tests! {
    TESTS: whole, older_libraries, no_provider, no_libmlx5
}

const DEVICE: &str = "mlx5_0";

/// A host that has this libibverbs.
fn host(library: &Library) -> Host {
    let host = Host::new();
    library.write(&host.path(NAME));
    host
}

/// What a process says that exchanges messages on the device.
fn used(mut host: Host) -> Value {
    host.change.device = Some(DEVICE.to_owned());
    let said = host.witness_of_kernel();
    assert_eq!(
        said["devices"],
        serde_json::json!(["soft", DEVICE]),
        "{said:#}"
    );
    assert_eq!(said["auto"], DEVICE);
    assert_eq!(
        said["choice"],
        "the first device with an active port, which is port 1"
    );
    said
}

fn whole() {
    let said = used(host(&Library::of_host()));
    assert_eq!(said["absent"], serde_json::json!([]));
    assert_eq!(
        (&said["missing"], &said["relaxed"]),
        (&Value::Null, &"".into())
    );
}

/// What came later than what is needed at least: the device works without, by its rings and by libibverbs,
/// and what cannot do without says what it lacks. `ibv_qp_to_qp_ex` stays: libmlx5 asks for it, too.
fn older_libraries() {
    for only in ["0", "1"] {
        let mut library = Library::of_host();
        for symbol in ["_ibv_query_gid_ex", "ibv_reg_dmabuf_mr", "ibv_reg_mr_iova2"] {
            library.hide(symbol);
        }
        let said = used(host(&library).env("BELLWIRE_VERBS_ONLY", only));
        assert_eq!(
            said["missing"],
            "libibverbs.so.1 has no _ibv_query_gid_ex, which came with rdma-core 32: install that or a \
             newer one"
        );
        assert_eq!(
            said["relaxed"],
            "libibverbs.so.1 is too old for this: it has no ibv_reg_mr_iova2; install rdma-core 28 or newer"
        );
    }
}

/// A libmlx5 that is loaded by its own name is a provider too.
fn no_provider() {
    let mut library = Library::of_host();
    library.replace("/etc/libibverbs.d", "/etc/libibverbs.~");
    let host = host(&library);
    host.spoil("libmlx5.so.1");
    let said = host.witness_of_kernel();
    let text = "verbs: mlx5_0: libibverbs has no provider for it that can be loaded (the kernel's driver \
                is mlx5_core): install ibverbs-providers";
    alone_and_unknown(&said, &[text]);
}

/// The provider is there, and the device is driven by libibverbs.
fn no_libmlx5() {
    let host = host(&Library::of_host());
    host.spoil("libmlx5.so.1");
    let said = used(host);
    let absent = said["absent"].as_array().expect("a list");
    let text = "mlx5: mlx5_0: libmlx5.so.1 cannot be loaded: ";
    let is_said = |absent: &Value| absent.as_str().is_some_and(|said| said.starts_with(text));
    assert!(absent.len() == 1 && is_said(&absent[0]), "{said:#}");
}
