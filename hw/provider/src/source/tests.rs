use super::*;
use crate::error::Error;

fn of(device: &str, cause: Cause) -> Absent {
    Absent {
        device: Some(device.to_owned()),
        ..Absent::verbs(cause)
    }
}

/// Each text has to name the object concerned, and what to do.
#[test]
fn causes_say_what_to_do() {
    let node = || "/dev/infiniband/uverbs3".to_owned();
    let reason = || "as it says".to_owned();
    for (cause, words) in [
        (Cause::NotBuilt, &["\"hardware\""][..]),
        (Cause::LibraryNotFound { reason: reason() }, &["as it says"]),
        (Cause::LibraryRefused { reason: reason() }, &["as it says"]),
        (Cause::LibraryTooOld { reason: reason() }, &["as it says"]),
        (Cause::CannotOpen { reason: reason() }, &["as it says"]),
        (
            Cause::CannotList { reason: reason() },
            &["as it says", "standard error"],
        ),
        (
            Cause::NoKernelSupport,
            &["/sys/class/infiniband_verbs", "`modprobe ib_uverbs`"],
        ),
        (
            Cause::NoSysfs { reason: reason() },
            &["not visible: as it says", "mount /sys"],
        ),
        (
            Cause::Forbidden { reason: reason() },
            &["as it says: this is not the node's mode", "`--device`"],
        ),
        (Cause::NoDevice, &["driver", "`rdma link`"]),
        (
            Cause::NoNodes,
            &["no /dev/infiniband:", "`--device /dev/infiniband`"],
        ),
        (
            Cause::NoNode { path: node() },
            &[
                "no /dev/infiniband/uverbs3:",
                "`--device /dev/infiniband/uverbs3`",
            ],
        ),
        (
            Cause::NoPermission { path: node() },
            &["no permission", "`ls -l /dev/infiniband/uverbs3`"],
        ),
        (
            Cause::OtherNamespace,
            &["network namespace", "`rdma dev set`"],
        ),
        (
            Cause::NoProvider { driver: None },
            &[
                "that can be loaded: install ibverbs-providers",
                "libibverbs (Fedora",
            ],
        ),
        (
            Cause::NoProvider {
                driver: Some("mlx5_core".to_owned()),
            },
            &[
                "mlx5_core",
                "ibverbs-providers",
                "standard error",
                "IBV_SHOW_WARNINGS=1",
            ],
        ),
        (
            Cause::NoActivePort { ports: 1 },
            &["its port is", "`ip link set`"],
        ),
        (
            Cause::NoActivePort { ports: 2 },
            &["none of its 2 ports", "subnet"],
        ),
    ] {
        let text = cause.to_string();
        for word in words {
            assert!(text.contains(word), "{word:?} is not in {text:?}");
        }
    }
}

#[test]
fn a_choice_says_who_was_passed_over() {
    let down = of("mlx5_0", Cause::NoActivePort { ports: 1 });
    let chosen = Choice::ActivePort {
        port: 2,
        before: Vec::new(),
    };
    assert_eq!(
        chosen.to_string(),
        "the first device with an active port, which is port 2"
    );
    let chosen = Choice::ActivePort {
        port: 1,
        before: vec![down.clone()],
    };
    assert!(
        (chosen.to_string()).ends_with(&format!("which is port 1; verbs: mlx5_0: {}", down.cause))
    );
    let chosen = Choice::Fallback {
        before: vec![down, Absent::verbs(Cause::NotBuilt)],
    };
    let text = chosen.to_string();
    assert!(
        text.starts_with("there is no other device with an active port; verbs: mlx5_0: its port")
    );
    assert!(text.contains("; verbs: this build"), "{text}");
}

#[test]
fn an_unknown_name_says_which_there_are_and_why_not_more() {
    let error = Error::UnknownDevice {
        name: "mlx5_1".into(),
        there: ["rxe0".to_owned(), "rxe1".to_owned()].into(),
        absent: [of("mlx5_0", Cause::OtherNamespace)].into(),
    };
    assert_eq!(
        error.to_string(),
        format!(
            "no device \"mlx5_1\": there is \"soft\" (or \"auto\"), and \"soft:NAME\" for a fabric of \
             processes; libibverbs has rxe0, rxe1; verbs: mlx5_0: {}",
            Cause::OtherNamespace
        )
    );
}
