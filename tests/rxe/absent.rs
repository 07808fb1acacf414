//! Devices that are there, and cannot be used: libibverbs' own words for that are none, so that the list, an
//! unknown name and `"auto"` have to find out. With libraries of a test's own: `tests/sources`.

use crate::tests;
use bellwire::sources::{Cause, Choice};
use bellwire::{Device, PortState};
use bellwire_tests::cable::{Undo, until_port};
use bellwire_tests::ends::{ALONE, open};
use bellwire_tests::library::{Library, NAME};
use bellwire_tests::witness::Change;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

tests! { nothing_is_lacking, an_older_libibverbs, no_nodes, no_node, no_provider, closed_nodes, closed_folder, an_inactive_port }

const NAMES: [&str; 3] = ["rxe0", "rxe1", "rxe2"];

/// There is the software HCA, and this is said of the others, here with their names.
fn alone(change: &Change, names: &[&str], says: &str) {
    let said = change.witness(&[]);
    assert_eq!(said["devices"], json!(["soft"]), "{said:#}");
    assert_eq!(said["auto"], "soft");
    let texts: Vec<_> = said["absent"].as_array().into_iter().flatten().collect();
    assert_eq!(texts.len(), names.len(), "{said:#}");
    for name in names {
        let start = format!("verbs: {name}{says}");
        let mut text = texts.iter().filter_map(|text| text.as_str());
        let text = text.find(|text| text.starts_with(&start));
        let text = text.unwrap_or_else(|| panic!("{start} is not in {said:#}"));
        assert!(
            said["choice"]
                .as_str()
                .is_some_and(|choice| choice.contains(text))
        );
    }
}

fn nothing_is_lacking() {
    let change = Change {
        device: Some(ALONE.to_owned()),
        ..Change::default()
    };
    let said = change.witness(&[]);
    assert_eq!(said["absent"], json!([]), "{said:#}");
    assert_eq!(
        (&said["auto"], &said["relaxed"]),
        (&json!(ALONE), &json!(""))
    );
    assert_eq!(said["missing"], Value::Null);
    assert_eq!(
        said["choice"],
        "the first device with an active port, which is port 1"
    );
}

/// Without what came later the device works, and what cannot do without says what it lacks.
fn an_older_libibverbs() {
    let mut library = Library::of_host();
    for symbol in [
        "_ibv_query_gid_ex",
        "ibv_qp_to_qp_ex",
        "ibv_reg_dmabuf_mr",
        "ibv_reg_mr_iova2",
    ] {
        library.hide(symbol);
    }
    let folder = std::env::temp_dir().join("bellwire-older-libibverbs");
    std::fs::create_dir_all(&folder).expect("a folder");
    library.write(&folder.join(NAME));
    let change = Change {
        device: Some(ALONE.to_owned()),
        ..Change::default()
    };
    let said = change.witness(&[("LD_LIBRARY_PATH", &folder.display().to_string())]);
    assert_eq!(
        said["devices"],
        json!(["soft", "rxe0", "rxe1", "rxe2"]),
        "{said:#}"
    );
    assert_eq!(
        said["relaxed"],
        "libibverbs.so.1 is too old for this: it has no ibv_reg_mr_iova2; install rdma-core 28 or newer"
    );
    std::fs::remove_dir_all(folder).expect("the folder");
}

fn hidden(path: &str) -> Change {
    Change {
        hidden: vec![path.to_owned()],
        ..Change::default()
    }
}

fn no_nodes() {
    alone(&hidden("/dev"), &[""], "there is no /dev/infiniband: ");
}

fn no_node() {
    alone(
        &hidden("/dev/infiniband"),
        &NAMES,
        ": there is no /dev/infiniband/uverbs",
    );
}

fn no_provider() {
    let says = ": libibverbs has no provider for it that can be loaded";
    alone(&hidden("/etc/libibverbs.d"), &NAMES, says);
}

/// What is closed to a user who is not root.
fn closed(paths: &[String], mode: u32) {
    let undo = paths.iter().map(|path| {
        let is = std::fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777;
        Undo::after(
            &format!("chmod {mode:o} {path}"),
            &format!("chmod {is:o} {path}"),
        )
    });
    let undo: Vec<_> = undo.collect();
    let change = Change {
        nobody: true,
        ..Change::default()
    };
    alone(
        &change,
        &NAMES,
        ": no permission to open /dev/infiniband/uverbs",
    );
    undo.into_iter().for_each(Undo::now);
}

fn closed_folder() {
    closed(&["/dev/infiniband".to_owned()], 0o700);
}

fn closed_nodes() {
    let nodes = std::fs::read_dir("/dev/infiniband")
        .expect("it is there")
        .flatten();
    let nodes = nodes.map(|node| node.path().display().to_string());
    let nodes: Vec<_> = nodes.filter(|node| node.contains("uverbs")).collect();
    assert_eq!(nodes.len(), NAMES.len());
    closed(&nodes, 0o600);
}

fn an_inactive_port() {
    let down = Undo::after("ip link set dummy0 down", "ip link set dummy0 up");
    until_port(&open(ALONE), PortState::Down);
    let auto = Device::open("auto").expect("a device");
    assert_eq!(auto.name(), NAMES[1]);
    let Some(Choice::ActivePort {
        port: 1, before, ..
    }) = auto.choice()
    else {
        panic!("{:?}", auto.choice());
    };
    assert_eq!(before.len(), 1);
    assert_eq!(before[0].device.as_deref(), Some(ALONE));
    assert_eq!(before[0].cause, Cause::NoActivePort { ports: 1 });
    down.now();
    until_port(&open(ALONE), PortState::Active);
    assert_eq!(Device::open("auto").expect("a device").name(), ALONE);
}
