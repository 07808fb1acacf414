//! What `run` reads at constant offsets is what the decoder finds, for every operation and transport.

use super::*;
use crate::random::Random;
use bellwire_core::wqe::SendRing;
use std::ptr::NonNull;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Block([u8; 64]);

fn compare<T: Service>(random: &mut Random) {
    for &operation in WrOpcode::ALL {
        let mut memory = [Block([0; 64]); 16];
        for block in &mut memory {
            block.0.fill_with(|| random.draw() as u8);
        }
        memory[0].0[3] = operation.row().opcode;
        let blocks = memory.len() as u32;
        // SAFETY: the memory outlives the ring, and only this function uses it.
        let ring = unsafe { SendRing::new(NonNull::from(&mut memory).cast(), blocks) };
        // SAFETY: the ring is initialised, and nothing writes to it.
        let wqe = unsafe { SendWqe::read(ring.expect("a power of two"), 0) };
        let Ok(request) = wqe.request(T::TYPE) else {
            continue;
        };
        let data_at = |offset| request.data().eq(wqe.data(offset));
        match operation.row().layout {
            Layout::Control | Layout::Registration => assert!(request.data().is_empty()),
            Layout::Message => assert!(data_at(T::FIRST)),
            Layout::Memory => {
                assert_eq!(request.remote(), Some(wqe.remote(T::FIRST)));
                assert!(data_at(T::SECOND));
            }
            // Read by the decoder.
            Layout::CompareAndSwap | Layout::FetchAndAdd => {
                assert_eq!(request.remote(), Some(wqe.remote(T::FIRST)));
            }
        }
        let kind = CqeOpcode::of_receive(operation);
        assert_eq!(kind.is_some(), operation.consumes_receive());
        assert_eq!(
            kind == Some(CqeOpcode::RespWrImm),
            operation == WrOpcode::RdmaWriteWithImm
        );
    }
}

#[test]
fn constant_offsets_are_those_of_the_decoder() {
    let mut random = Random::new(3);
    for _ in 0..if cfg!(miri) { 5 } else { 1000 } {
        compare::<Rc>(&mut random);
        compare::<Uc>(&mut random);
        compare::<Ud>(&mut random);
        compare::<Xrc>(&mut random);
    }
}
