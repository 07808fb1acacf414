//! The child's side of the pipes.

use bellwire::wr::Remote;
use bellwire::{Endpoint, Qp};
use serde_json::{Value, json};
use std::io::Write;
use std::sync::mpsc::{Receiver, TryRecvError, channel};

/// Who started this process.
pub struct Parent(Receiver<String>);

impl Parent {
    /// Begins to listen, at the standard input.
    pub fn start() -> Self {
        let (sender, lines) = channel();
        // A thread, so that the work need not wait for words.
        std::thread::spawn(move || {
            for line in std::io::stdin().lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self(lines)
    }

    /// Says something, under this key.
    pub fn say(&self, key: &str, value: Value) {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}", json!({ key: value })).expect("the parent listens");
        out.flush().expect("the parent listens");
    }

    /// What is said next, under this key.
    pub fn hear(&self, key: &str) -> Value {
        let line = self.0.recv().expect("the parent is there");
        of(&line, key)
    }

    /// What is said next, under this key; `None`: the parent has nothing more to say.
    pub fn next(&self, key: &str) -> Option<Value> {
        Some(of(&self.0.recv().ok()?, key))
    }

    /// What has been said, under this key.
    pub fn heard(&self, key: &str) -> Option<Value> {
        match self.0.try_recv() {
            Ok(line) => Some(of(&line, key)),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => panic!("the parent is gone"),
        }
    }

    /// Whether the parent has nothing more to say.
    pub fn is_over(&self) -> bool {
        match self.0.try_recv() {
            Ok(line) => panic!("the parent says {line}"),
            Err(error) => error == TryRecvError::Disconnected,
        }
    }

    /// Waits until the parent has nothing more to say.
    pub fn wait_for_end(&self) {
        if let Ok(line) = self.0.recv() {
            panic!("the parent says {line}");
        }
    }
}

fn of(line: &str, key: &str) -> Value {
    let mut said: Value = serde_json::from_str(line).expect("JSON");
    match said.get_mut(key) {
        Some(value) => value.take(),
        None => panic!("the parent says {line}, not {key:?}"),
    }
}

/// A number in what was said.
pub fn number(value: &Value, key: &str) -> u64 {
    value[key]
        .as_u64()
        .unwrap_or_else(|| panic!("{key} of {value}"))
}

/// A queue pair and its memory, for the peer.
pub fn card(qp: &Qp, remote: Remote) -> Value {
    let Endpoint {
        qp_num,
        psn,
        lid,
        gid,
    } = qp.endpoint();
    json!({
        "qp_num": qp_num, "psn": psn, "lid": lid, "gid": gid, "addr": remote.addr, "rkey": remote.rkey,
    })
}

/// What a peer's card says.
pub fn read_card(card: &Value) -> (Endpoint, Remote) {
    let byte = |at: usize| card["gid"][at].as_u64().expect("a byte") as u8;
    let endpoint = Endpoint {
        qp_num: number(card, "qp_num") as u32,
        psn: number(card, "psn") as u32,
        lid: number(card, "lid") as u16,
        gid: std::array::from_fn(byte),
    };
    let remote = Remote {
        addr: number(card, "addr"),
        rkey: number(card, "rkey") as u32,
    };
    (endpoint, remote)
}
