//! Two processes under load, and a hostile third: the traffic of the two goes on undisturbed.

use crate::prey::{COUNT, secret};
use crate::{hostile, kill, victim};
use bellwire_tests::child::Child;
use bellwire_tests::fixture::{fabric_name, until};
use bellwire_tests::leftovers::{Holdings, Home, files, most_memory, sockets};
use bellwire_tests::parent::number;
use bellwire_tests::patience::lasting;
use serde_json::{Value, json};

/// Rounds of the short form.
const ROUNDS: u64 = 3;
/// How long each attack takes.
const MILLIS: u64 = 1500;

/// Bytes that a victim may need at the most: far more than its regions have.
const SANE: u64 = 256 << 20;

/// All rounds, or that of the seed that the environment names.
pub fn rounds() {
    let (mut revived, mut written) = (0, 0);
    let all = kill::seeds("fuzz", ROUNDS, |seed| {
        for met in round(seed) {
            revived += number(&met, "revived");
            written += number(&met, "written");
        }
    });
    eprintln!("{revived} connections were made again, {written} words were written");
    // Else there was no attack.
    assert!(!all || revived > 0 && written > 0);
}

/// What the victims have met.
fn round(seed: u64) -> [Value; 2] {
    let fabric = fabric_name();
    let home = Home::new(&fabric);
    let start = |role, name: &str| {
        let mut child = Child::start(role, name.to_owned(), &home.0);
        child.hear("ready");
        child
    };
    let mut victims = [
        start(victim::ROLE, "victim 0"),
        start(victim::ROLE, "victim 1"),
    ];
    let before = [0, 1].map(|at| Holdings::of(victims[at].pid()));
    let mut hostile = start(hostile::ROLE, "the hostile one");
    for (at, victim) in victims.iter_mut().enumerate() {
        victim.send(
            "open",
            json!({
                "fabric": fabric, "device": "shared", "index": at, "seed": seed, "peers": [1 - at],
            }),
        );
    }
    let cards = [0, 1].map(|at| victims[at].hear("cards"));
    hostile.send("open", json!({"fabric": fabric, "count": 2 * COUNT}));
    let theirs = hostile.hear("cards");
    let theirs = theirs.as_array().expect("cards");
    let lasting = lasting();
    for (at, victim) in victims.iter_mut().enumerate() {
        victim.send(
            "connect",
            json!({
                "limits": [[lasting.timeout, lasting.retry_cnt]], "cards": cards[1 - at]["flows"],
                "prey": theirs[at * COUNT..][..COUNT],
            }),
        );
    }
    let prey: Vec<&Value> = (cards.iter())
        .flat_map(|cards| cards["prey"].as_array().expect("cards"))
        .collect();
    let secrets = [0, 1].map(|at| secret(seed, at));
    hostile.send(
        "connect",
        json!({"seed": seed, "millis": MILLIS, "cards": prey, "secrets": secrets}),
    );
    for child in victims.iter_mut().chain([&mut hostile]) {
        child.hear("connected");
    }
    for child in victims.iter_mut().chain([&mut hostile]) {
        child.send("go", Value::Null);
    }
    let done = hostile.hear("done");
    eprintln!("round {seed}: {done}");
    assert_eq!(done["seen"], false, "what was not opened was seen");
    assert_eq!(done["links"], 2, "both were attacked");
    assert!(done["packets"].as_u64() > Some(0) && done["said"].as_u64() > Some(0));
    hostile.kill();
    // Whatever it says that it has for them.
    let most = [0, 1].map(|at| most_memory(victims[at].pid()));
    assert!(most.iter().all(|most| *most < SANE), "{most:?} bytes");
    for victim in &mut victims {
        victim.send("finish", Value::Null);
    }
    let met = [0, 1].map(|at| victims[at].hear("met"));
    let counts = [0, 1].map(|at| victims[at].hear("drained"));
    for (at, victim) in victims.iter_mut().enumerate() {
        let theirs = &counts[1 - at][0];
        assert!(theirs["notices"][1].as_u64() > Some(0), "nothing was sent");
        victim.send("check", json!({"sent": [theirs]}));
    }
    for (victim, before) in victims.iter_mut().zip(&before) {
        victim.hear("dropped");
        victim.is_silent();
        before.are_all_of(victim.pid());
    }
    until("the end of the fabric's sockets", || {
        sockets(&fabric).is_empty()
    });
    let left = files(&home.0, &fabric);
    assert!(left.is_empty(), "{left:?}");
    victims.into_iter().for_each(Child::end);
    met
}
