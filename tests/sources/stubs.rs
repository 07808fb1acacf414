//! A libibverbs that a test wrote itself, and a folder in the place of the kernel's `/sys`.

use crate::host::{Host, alone, alone_and_unknown};
use crate::tests;
use bellwire_tests::library::{NAME, find};
use std::path::Path;

tests! {
    TESTS: refused, too_old, no_kernel_support, no_sysfs, no_device, no_node, other_namespace, cannot_list, cannot_open
}
tests! {
    PRIVATE: not_found, no_nodes, closed_folder, closed_node, no_provider
}

const NODE: &str = "uverbs4242";

fn refused() {
    let host = Host::new();
    host.spoil("libibverbs.so.1");
    let said = host.witness();
    alone_and_unknown(&said, &["verbs: libibverbs.so.1 cannot be loaded: "]);
    assert!(
        said["absent"][0]
            .as_str()
            .is_some_and(|text| text.ends_with("invalid ELF header"))
    );
}

fn too_old() {
    let host = Host::new();
    host.compile("int ibv_get_device_list(void) { return 0; }");
    let said = host.witness();
    let old = "verbs: libibverbs.so.1 is too old: it has no ibv_ack_cq_events; install rdma-core 16 or newer";
    alone_and_unknown(&said, &[old]);
}

fn no_kernel_support() {
    let host = Host::with_stub().kernel("net/eth0/mtu", "1500\n");
    let said = host.witness();
    let text = "verbs: this kernel has no RDMA for programs, for there is no /sys/class/infiniband_verbs: ";
    alone_and_unknown(&said, &[text]);
    // What the stub does not have is missing by itself.
    assert_eq!(
        said["missing"],
        "libibverbs.so.1 has no _ibv_query_gid_ex, which came with rdma-core 32: install that or a newer one"
    );
}

/// Nothing is known of the kernel.
fn no_sysfs() {
    let said = Host::with_stub().witness();
    let text = "verbs: whether the kernel has RDMA devices is not visible: ";
    alone_and_unknown(&said, &[text]);
}

fn no_device() {
    let said = Host::with_stub().kernel_without_devices().witness();
    alone_and_unknown(&said, &["verbs: the kernel has no RDMA device: "]);
}

fn no_node() {
    let said = Host::with_stub().kernel_device().witness();
    let text = match Path::new("/dev/infiniband").exists() {
        true => "verbs: stub0: there is no /dev/infiniband/uverbs4242: ",
        false => "verbs: there is no /dev/infiniband: ",
    };
    alone_and_unknown(&said, &[text]);
}

fn other_namespace() {
    let host = Host::with_stub().kernel("infiniband_verbs/uverbs4242/ibdev", "stub0\n");
    alone_and_unknown(
        &host.witness(),
        &["verbs: stub0: it is in another network namespace: "],
    );
}

fn cannot_list() {
    let host = Host::with_stub()
        .kernel_without_devices()
        .env("STUB_LIST", "5");
    let text = "verbs: libibverbs cannot list devices: Input/output error (os error 5)";
    alone_and_unknown(&host.witness(), &[text]);
}

/// As a kernel may that is too old for the provider. The name is known, so that others are not explained.
fn cannot_open() {
    let host = Host::with_stub().kernel_device();
    let said = host
        .env("STUB_DEVICE", "stub0")
        .env("STUB_OPEN", "38")
        .witness();
    alone(
        &said,
        &["verbs: stub0: cannot open the device: Function not implemented (os error 38)"],
    );
    assert!(
        said["unknown"]
            .as_str()
            .is_some_and(|text| text.ends_with("libibverbs has stub0"))
    );
}

fn not_found() {
    let mut host = Host::new();
    let found = find(NAME);
    let folder = found.iter().flat_map(|path| path.parent());
    host.change.hidden = folder.map(|path| path.display().to_string()).collect();
    let text = "verbs: libibverbs.so.1 was not found: install libibverbs1 (Debian, Ubuntu) or libibverbs \
                (Fedora, RHEL)";
    alone_and_unknown(&host.witness(), &[text]);
}

fn no_nodes() {
    let mut host = Host::with_stub().kernel_device();
    host.change.hidden = vec!["/dev".to_owned()];
    alone_and_unknown(&host.witness(), &["verbs: there is no /dev/infiniband: "]);
}

/// libibverbs does not list what it cannot look at.
fn closed_folder() {
    let mut host = Host::with_stub().kernel_device();
    host.change.nodes = Some((0o700, NODE.to_owned(), 0o666));
    host.change.nobody = true;
    let text = "verbs: stub0: no permission to open /dev/infiniband/uverbs4242: ";
    alone_and_unknown(&host.witness(), &[text]);
}

/// It lists what it cannot open.
fn closed_node() {
    let host = Host::with_stub().kernel_device();
    let mut host = host.env("STUB_DEVICE", "stub0").env("STUB_OPEN", "13");
    host.change.nodes = Some((0o755, NODE.to_owned(), 0o600));
    host.change.nobody = true;
    let text = "verbs: stub0: no permission to open /dev/infiniband/uverbs4242: ";
    alone(&host.witness(), &[text]);
}

fn no_provider() {
    let mut host = Host::with_stub().kernel_device();
    host.change.nodes = Some((0o755, NODE.to_owned(), 0o666));
    let text = "verbs: stub0: libibverbs has no provider for it that can be loaded (the kernel's driver \
                is mlx5_core): install ibverbs-providers (Debian, Ubuntu) or libibverbs (Fedora, RHEL)";
    alone_and_unknown(&host.witness(), &[text]);
}
