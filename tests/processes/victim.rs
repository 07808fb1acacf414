//! A process under load, with a hostile peer among others.

use crate::prey::Prey;
use crate::worker::Worker;
use bellwire_tests::parent::{Parent, number};
use serde_json::{Value, json};

/// What it is started as.
pub const ROLE: &str = "victim";

/// Plays the role.
pub fn play() {
    let parent = Parent::start();
    parent.say("ready", Value::Null);
    let order = parent.hear("open");
    let mut worker = Worker::new(parent, &order);
    let mut prey = Prey::new(&worker.pd, number(&order, "seed"), number(&order, "index"));
    let cards = json!({"flows": worker.cards(), "prey": prey.cards()});
    worker.parent.say("cards", cards);
    let order = worker.parent.hear("connect");
    worker.connect(&order);
    prey.connect(&order["prey"]);
    worker.parent.say("connected", Value::Null);
    worker.parent.hear("go");
    worker.work(|| prey.step());
    prey.end();
    worker.parent.say("met", prey.met());
    drop(prey);
    worker.settle();
}
