//! Changes of state, and what was noted.

use super::*;

#[test]
fn the_last_notes_are_kept_in_order() {
    let (mut a, _b) = pair(Mode::Inline);
    let states = [QpState::Init, QpState::Rtr, QpState::Rts].map(What::State);
    let whats = |record: Record| Vec::from_iter(record.notes.into_iter().map(|note| note.what));
    assert_eq!(whats(dump(&mut a)), states);
    a.qp.note(EventType::CommEst);
    a.qp.init(&ConnectAttr::default())
        .expect_err("it is in RTS");
    a.qp.to_error().expect("ERR");
    a.qp.note("drained");
    let record = dump(&mut a);
    let text = record.to_string();
    assert!(
        text.contains(" event COMM_EST\n") && text.contains(" drained\n"),
        "{text}"
    );
    assert!(record.notes.windows(2).all(|pair| pair[0].at <= pair[1].at));
    let whats_now = whats(record);
    assert_eq!(whats_now[3], What::Event(EventType::CommEst));
    assert!(
        matches!(&whats_now[4], What::Refused(why) if why.contains("RTS")),
        "{whats_now:?}"
    );
    assert_eq!(whats_now[5], What::State(QpState::Err));
    for number in 0..100 {
        a.qp.note(format!("note {number}"));
    }
    let last = whats(dump(&mut a));
    assert_eq!(last.len(), 64);
    assert_eq!(last[0], What::Text("note 36".to_owned()));
    assert_eq!(last[63], What::Text("note 99".to_owned()));
}
