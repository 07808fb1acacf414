//! Two processes that sleep until the other's message comes, each with and without membarrier(2): a barrier that
//! is missing on either side is a sleep without end, or a message that comes before what was written.

use bellwire::event::CompChannel;
use bellwire::memory::Mapping;
use bellwire::wqe::{Inline, RdmaWrite, Send};
use bellwire::{Cq, CqInit, Device, Pd, Qp, QpInit, Region};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{ALL, SIGNALED, fabric_name, post, post_recv};
use bellwire_tests::leftovers::Home;
use bellwire_tests::parent::{Parent, card, number, read_card};
use bellwire_tests::patience::lasting;
use bellwire_tests::refuse::refuse;
use serde_json::{Value, json};
use std::sync::atomic::Ordering;

/// What it is started as.
pub const ROLE: &str = "sleeper";

/// Messages of each process.
const MESSAGES: u64 = 500;

/// Identifies receives.
const RECEIVE: u64 = 0;

/// The other's word, and where its SENDs go.
const WRITTEN: usize = 0;
const SENT: usize = 8;

/// The two take turns.
fn pair(membarrier: [bool; 2], messages: u64) {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let mut ends = membarrier.map(|has| {
        let name = format!("the one of {membarrier:?} with {has}");
        let mut end = Child::start(ROLE, name, &home.0);
        end.send("open", json!({"fabric": fabric, "membarrier": has}));
        end
    });
    let cards = [0, 1].map(|at: usize| ends[at].hear("card"));
    for (at, end) in ends.iter_mut().enumerate() {
        let order = json!({"card": cards[1 - at], "first": at == 0, "messages": messages});
        end.send("connect", order);
    }
    // Both are connected before one sends.
    ends.iter_mut().for_each(|end| drop(end.hear("connected")));
    for end in &mut ends {
        end.send("go", Value::Null);
    }
    ends.iter_mut().for_each(|end| drop(end.hear("done")));
    ends.into_iter().for_each(Child::end);
}

/// Where every process has membarrier(2).
pub fn awake_each_other() {
    pair([true, true], MESSAGES);
}

/// One of them has it, or none.
pub fn without_membarrier() {
    for membarrier in [[true, false], [false, true], [false, false]] {
        pair(membarrier, MESSAGES);
    }
}

struct End {
    channel: CompChannel,
    // In the order in which they go.
    qp: Qp,
    cq: Cq,
    region: Region,
    _pd: Pd,
    /// Messages that were sent, requests of those that are done, and messages that came.
    sent: u64,
    done: u64,
    came: u64,
}

impl End {
    fn new(fabric: &str) -> Self {
        let device = Device::open(&format!("soft:{fabric}")).expect("a node");
        let pd = device.alloc_pd();
        let channel = device.create_comp_channel().expect("a channel");
        let init = QpInit::default();
        let (sends, receives) = init.cq_entries();
        let cq = device.create_cq_with(&CqInit {
            channel: Some(&channel),
            ..CqInit::new(sends + receives)
        });
        let mut cq = cq.expect("a queue");
        let mapping = Mapping::shared("sleepers", 4096).build().expect("memory");
        let region = Region::new(&pd, mapping, ALL).expect("a region");
        let qp = pd.create_qp(&mut cq, &init).expect("a queue pair");
        let _pd = pd;
        Self {
            channel,
            qp,
            cq,
            region,
            _pd,
            sent: 0,
            done: 0,
            came: 0,
        }
    }

    fn expect_one(&mut self) {
        let receive = self.region.sge(SENT, 8);
        post_recv(&mut self.qp, RECEIVE, &[receive]).expect("room");
        self.qp.rq().ring();
    }

    /// Sleeps until so many messages have come, and all that was posted to be sent is done.
    fn sleep(&mut self, messages: u64) {
        while self.came < messages || self.done < 2 * self.sent {
            self.cq.req_notify(false).expect("armed");
            let mut polled = false;
            while let Some(done) = self.cq.poll_one() {
                polled = true;
                match done.wr_id {
                    RECEIVE => self.came += 1,
                    _ => self.done += 1,
                }
                done.result.expect("success");
            }
            if !polled {
                self.channel.get_cq_event().expect("an event").ack();
            }
        }
    }
}

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    let order = parent.hear("open");
    if order["membarrier"] == false {
        refuse(&[libc::SYS_membarrier], libc::EPERM);
    }
    let mut end = End::new(order["fabric"].as_str().expect("a name"));
    let attr = lasting();
    end.qp.init(&attr).expect("INIT");
    end.expect_one();
    parent.say("card", card(&end.qp, end.region.remote(WRITTEN)));
    let order = parent.hear("connect");
    let (endpoint, remote) = read_card(&order["card"]);
    end.qp.connect(&endpoint, &attr).expect("RTS");
    parent.say("connected", Value::Null);
    parent.hear("go");
    let (first, messages) = (order["first"] == true, number(&order, "messages"));
    for message in 1..=messages {
        if !first {
            end.sleep(message);
            end.holds(message);
        }
        let bytes = message.to_ne_bytes();
        post(
            &mut end.qp,
            1,
            RdmaWrite { remote },
            Inline(&bytes),
            SIGNALED,
        )
        .expect("room");
        post(&mut end.qp, 1, Send {}, Inline(&bytes), SIGNALED).expect("room");
        end.qp.sq().ring();
        end.sent += 1;
        if first {
            end.sleep(message);
            end.holds(message);
        }
    }
    end.sleep(messages);
    parent.say("done", Value::Null);
    parent.wait_for_end();
}

impl End {
    /// What was written before the message is there; another may come.
    fn holds(&mut self, message: u64) {
        for place in [WRITTEN, SENT] {
            let word = self.region.word(place).load(Ordering::Acquire);
            assert_eq!(word, message, "at {place}");
        }
        self.expect_one();
    }
}
