//! Sandboxes: each system call of the table in `docs/sandboxes.md` is refused, before start-up or once connections
//! exist and threads run. What the table calls optional changes nothing; a call that is required fails with an error
//! that names what was being done, and nothing else: no process ends, no thread hangs, and no request is lost.

use bellwire::event::CompChannel;
use bellwire::memory::{Mapping, Pages};
use bellwire::soft::HcaConfig;
use bellwire::wqe::{Inline, RdmaWrite, Send};
use bellwire::{ConnectAttr, Cq, CqInit, Device, Pd, Qp, QpInit, Region};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{ALL, DEADLINE, SIGNALED, fabric_name, post, post_recv};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, card, number, read_card};
use bellwire_tests::refuse::refuse_everywhere;
use serde_json::{Value, json};
use std::ffi::CString;
use std::time::Instant;

/// What it is started as.
const ROLE: &str = "sandboxed";

/// What `main` knows of this area.
pub const AREA: crate::Area = crate::Area {
    roles: &[(ROLE, play), (UNMAPPING, drop_without_munmap)],
    tests: &[
        ("sandbox::each_call_before_start_up", || walk(true)),
        ("sandbox::each_call_after_start_up", || walk(false)),
        ("sandbox::each_folder_before_start_up", || hide(true)),
        ("sandbox::each_folder_after_start_up", || hide(false)),
        ("sandbox::the_table_is_complete", complete),
        ("sandbox::memory_that_stays_mapped", memory_stays),
    ],
};

/// Every system call that the table names.
const NUMBERS: &[(&str, &[libc::c_long])] = &[
    ("membarrier", &[libc::SYS_membarrier]),
    ("memfd_create", &[libc::SYS_memfd_create]),
    ("pidfd_open", &[libc::SYS_pidfd_open]),
    ("madvise", &[libc::SYS_madvise]),
    ("mlock", &[libc::SYS_mlock]),
    ("sched_getaffinity", &[libc::SYS_sched_getaffinity]),
    ("sched_yield", &[libc::SYS_sched_yield]),
    ("clock_nanosleep", &[libc::SYS_clock_nanosleep]),
    ("userfaultfd", &[libc::SYS_userfaultfd]),
    ("statx", &[libc::SYS_statx]),
    ("getrandom", &[libc::SYS_getrandom]),
    ("mbind", &[libc::SYS_mbind]),
    ("prctl", &[libc::SYS_prctl]),
    ("eventfd2", &[libc::SYS_eventfd2]),
    ("epoll_create1", &[libc::SYS_epoll_create1]),
    ("timerfd_create", &[libc::SYS_timerfd_create]),
    ("socket", &[libc::SYS_socket]),
    ("clone", &[libc::SYS_clone, libc::SYS_clone3]),
    ("fcntl", &[libc::SYS_fcntl]),
    ("openat", &[libc::SYS_openat]),
];

/// The table.
const PAGE: &str = include_str!("../../docs/sandboxes.md");

/// One row.
#[derive(Debug)]
struct Row {
    call: &'static str,
    numbers: &'static [libc::c_long],
    /// Required for what is made newly, before start-up or after it.
    required: bool,
}

fn table() -> Vec<Row> {
    let rows = PAGE.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split('|');
        let call = cells.next()?.trim().strip_suffix('`')?;
        let &(call, numbers) = NUMBERS.iter().find(|(name, _)| *name == call)?;
        let required = match cells.next()?.trim() {
            "required" => true,
            "optional" => false,
            other => panic!("{call} is {other:?}"),
        };
        Some(Row {
            call,
            numbers,
            required,
        })
    });
    rows.collect()
}

fn complete() {
    let rows = table();
    for (name, _) in NUMBERS {
        let count = rows.iter().filter(|row| row.call == *name).count();
        assert_eq!(count, 1, "{name} in docs/sandboxes.md");
    }
}

/// Hides each folder of the second table from one of two processes: nothing fails.
fn hide(before: bool) {
    let mut wrong = Vec::new();
    for folder in ["/proc", "/sys", "/dev"] {
        assert!(PAGE.contains(&format!("| `{folder}/")), "{folder}");
        let plan = json!({"hide": folder, "before": before});
        let failed = meet(&format!("{folder} hidden"), &plan);
        if failed.as_deref() == Some(UNPRIVILEGED) {
            println!("ignored: {UNPRIVILEGED}");
            return;
        }
        println!("{folder}: {failed:?}");
        wrong.extend(failed.map(|failed| format!("{folder}: {failed}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// A process that may not unmap memory is started as this.
const UNMAPPING: &str = "unmapping";

/// munmap(2) fails where it would split a mapping and the process has as many as it may have. A drop cannot report
/// that: the memory stays mapped, and the program goes on.
fn memory_stays() {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let mut end = Child::start(UNMAPPING, "a process".to_owned(), &home.0);
    end.send("fabric", json!(fabric));
    assert_eq!(end.hear("dropped"), json!(true));
    end.end();
}

fn drop_without_munmap() {
    let parent = Parent::start();
    let fabric = parent.hear("fabric");
    let name = format!("soft:{}", fabric.as_str().expect("a name"));
    let device = Device::open(&name).expect("a node");
    let pd = device.alloc_pd();
    let mut cq = device.create_cq(512).expect("a completion queue");
    let qp = pd
        .create_qp(&mut cq, &QpInit::default())
        .expect("a queue pair");
    let anonymous = Mapping::anonymous(1 << 20).pages(Pages::Base);
    let shared = Mapping::shared("unmapped", 1 << 20).pages(Pages::Base);
    let regions = [anonymous, shared].map(|mapping| {
        let memory = mapping.build().expect("memory");
        Region::new(&pd, memory, ALL).expect("a region")
    });
    refuse_everywhere(&[libc::SYS_munmap], libc::ENOMEM);
    drop((regions, qp, cq, pd, device));
    parent.say("dropped", json!(true));
    parent.wait_for_end();
}

/// What a process says that may not hide folders.
const UNPRIVILEGED: &str = "no privilege to mount";

/// Refuses each call to one of two processes, which are connected.
fn walk(before: bool) {
    let mut wrong = Vec::new();
    for row in table() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let plan = json!({"call": row.numbers, "errno": errno, "before": before});
            let failed = meet(&format!("{} with {errno}", row.call), &plan);
            println!("{} ({errno}): {failed:?}", row.call);
            if failed.is_some() != row.required {
                wrong.push(format!("{row:?}, errno {errno}: {failed:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What failed, if anything did.
fn meet(what: &str, plan: &Value) -> Option<String> {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let mut ends = [true, false].map(|refused| {
        let mut end = Child::start(
            ROLE,
            format!("the end of {what}, itself: {refused}"),
            &home.0,
        );
        let mut plan = if refused { plan.clone() } else { json!({}) };
        plan["fabric"] = json!(fabric);
        end.send("plan", plan);
        end
    });
    let cards = ends.each_mut().map(|end| end.hear("card"));
    let said = if let Some(text) = cards[0].as_str() {
        // It could not be made, and says why; the other one is alone.
        Some(text.to_owned())
    } else {
        for at in [0, 1] {
            ends[at].send("peer", cards[1 - at].clone());
        }
        let mut failed = Vec::new();
        for step in [
            "connected",
            "exchanged",
            "refused",
            "exchanged again",
            "made",
        ] {
            for end in &mut ends {
                end.send("step", Value::Null);
            }
            for end in &mut ends {
                failed.extend(end.hear(step).as_str().map(str::to_owned));
            }
        }
        (!failed.is_empty()).then(|| failed.join("; "))
    };
    ends.into_iter().for_each(Child::end);
    said
}

/// One of the two.
struct World {
    channel: CompChannel,
    // In the order in which they go.
    qp: Qp,
    cq: Cq,
    region: Region,
    pd: Pd,
}

const MESSAGES: usize = 100;

impl World {
    fn new(fabric: &str) -> Result<Self, bellwire::Error> {
        let device = Device::join(fabric, HcaConfig::default())?;
        let pd = device.alloc_pd();
        let channel = device.create_comp_channel()?;
        let init = QpInit {
            max_send_wr: 16,
            max_recv_wr: MESSAGES as u32 * 2,
            ..QpInit::default()
        };
        let (sends, receives) = init.cq_entries();
        let mut cq = device.create_cq_with(&CqInit {
            channel: Some(&channel),
            ..CqInit::new(sends + receives)
        })?;
        let mapping = Mapping::shared("sandbox", 1 << 16)
            .pages(Pages::Base)
            .build()?;
        let region = Region::new(&pd, mapping, ALL)?;
        let qp = pd.create_qp(&mut cq, &init)?;
        Ok(Self {
            channel,
            qp,
            cq,
            region,
            pd,
        })
    }

    /// Messages in both directions, of which none is lost. Sleeps in between; if that is refused, polls instead, and
    /// returns the error.
    fn exchange(&mut self, remote: bellwire::wr::Remote) -> Result<(), bellwire::Error> {
        let mut slept = Ok(());
        for _ in 0..MESSAGES {
            post_recv(&mut self.qp, 0, &[self.region.sge(0, 64)]).expect("room");
        }
        self.qp.rq().ring();
        let (mut came, mut done, mut sent) = (0, 0, 0);
        let start = Instant::now();
        while came < MESSAGES || done < 2 * MESSAGES {
            if sent < MESSAGES && 2 * sent == done {
                let write = RdmaWrite { remote };
                post(&mut self.qp, 1, write, Inline(b"eight by"), SIGNALED).expect("room");
                post(&mut self.qp, 1, Send {}, Inline(b"a message"), SIGNALED).expect("room");
                self.qp.sq().ring();
                sent += 1;
            }
            self.cq.req_notify(false).expect("armed");
            let mut polled = false;
            while let Some(completion) = self.cq.poll_one() {
                polled = true;
                match completion.wr_id {
                    0 => came += 1,
                    _ => done += 1,
                }
                completion.result.expect("success");
            }
            if !polled && (came < MESSAGES || done < 2 * MESSAGES) {
                match self.channel.get_cq_event() {
                    Ok(event) => event.ack(),
                    Err(error) => {
                        slept = Err(error);
                        std::thread::yield_now();
                    }
                }
            }
            assert!(start.elapsed() < DEADLINE, "{came} came, {done} done");
        }
        slept
    }

    /// What a program makes and destroys while it runs. The first error.
    fn make(&mut self, round: u32) -> Result<(), bellwire::Error> {
        let device = self.pd.device().clone();
        let channel = device.create_comp_channel()?;
        let mut cq = device.create_cq_with(&CqInit {
            channel: Some(&channel),
            ..CqInit::new(512)
        })?;
        let mut qp = self.pd.create_qp(&mut cq, &QpInit::default())?;
        let attr = ConnectAttr::default();
        qp.init(&attr)?;
        qp.connect(&qp.endpoint(), &attr)?;
        let mapping = Mapping::shared("sandbox", 1 << 16)
            .pages(Pages::Base)
            .build()?;
        let region = Region::new(&self.pd, mapping, ALL)?;
        for _ in 0..round {
            let write = RdmaWrite {
                remote: region.remote(0),
            };
            post(&mut qp, 1, write, Inline(b"eight by"), SIGNALED).expect("room");
            qp.sq().ring();
            let completion = cq.poll_one().expect("executed");
            completion.result.expect("success");
        }
        drop(region);
        drop(qp);
        drop(cq);
        // Another node.
        drop(Device::join(&fabric_name(), HcaConfig::default())?);
        Ok(())
    }
}

/// Plays the role.
fn play() {
    let parent = Parent::start();
    let plan = parent.hear("plan");
    let refuse = || {
        if let Some(folder) = plan["hide"].as_str() {
            mount("tmpfs", folder, 0).expect("allowed");
        }
        let calls = plan["call"].as_array().into_iter().flatten();
        let calls: Vec<_> = calls.flat_map(Value::as_i64).collect();
        if !calls.is_empty() {
            refuse_everywhere(&calls, number(&plan, "errno") as i32);
        }
    };
    let before = plan["before"] == true;
    if plan["hide"].is_string() {
        // SAFETY: a plain call.
        let own = unsafe { libc::unshare(libc::CLONE_NEWNS) } == 0;
        if !own || mount("none", "/", libc::MS_REC | libc::MS_PRIVATE).is_err() {
            parent.say("card", json!(UNPRIVILEGED));
            return parent.wait_for_end();
        }
    }
    if before {
        refuse();
    }
    let text = |error: bellwire::Error| error.to_string();
    let mut world = match World::new(plan["fabric"].as_str().expect("a name")) {
        Ok(world) => world,
        Err(error) => {
            parent.say("card", json!(text(error)));
            return parent.wait_for_end();
        }
    };
    let attr = ConnectAttr::default();
    world.qp.init(&attr).expect("INIT");
    parent.say("card", card(&world.qp, world.region.remote(1024)));
    let Some(peer) = parent.next("peer") else {
        return;
    };
    let (endpoint, remote) = read_card(&peer);
    let step = |name: &str, done: &mut dyn FnMut() -> Option<String>| {
        parent.hear("step");
        let failed = done();
        parent.say(name, failed.map_or(Value::Null, Value::String));
    };
    step("connected", &mut || {
        world.qp.connect(&endpoint, &attr).err().map(text)
    });
    step("exchanged", &mut || world.exchange(remote).err().map(text));
    step("refused", &mut || {
        if !before {
            refuse();
        }
        None
    });
    step("exchanged again", &mut || {
        world.exchange(remote).err().map(text)
    });
    step("made", &mut || {
        (1..4).find_map(|round| world.make(round).err()).map(text)
    });
    parent.wait_for_end();
}

/// Mounts an empty folder, or changes how mounts are shared, for this thread and those that it starts.
fn mount(kind: &str, at: &str, flags: libc::c_ulong) -> std::io::Result<()> {
    let [kind, at] = [kind, at].map(|text| CString::new(text).expect("a text"));
    // SAFETY: the texts live until the call returns.
    let done = unsafe {
        let none = std::ptr::null();
        libc::mount(kind.as_ptr(), at.as_ptr(), kind.as_ptr(), flags, none)
    };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}
