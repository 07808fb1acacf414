use super::*;
use crate::wr::QpType;

#[test]
fn every_number_has_a_class() {
    for number in (0..=300).chain([u32::MAX]) {
        let status = Fault::status(number, QpType::Rc, WorkQueue::Send(None), None);
        assert!(!classify(status).cause.is_empty());
        assert!(!classify(Fault::event(number)).cause.is_empty());
        assert!(!classify(Fault::cm(number)).cause.is_empty());
        assert!(!classify(Fault::Errno(number as i32)).cause.is_empty());
    }
    assert!(!classify(Fault::Errno(i32::MIN)).cause.is_empty());
}
