//! Doorbell registers that several queue pairs share.

use bellwire_core::queue::SharedRegister;
use bellwire_provider::backoff::wait_after;
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// The registers of a context that are in use, by address.
#[derive(Debug, Default)]
pub struct Registers(Mutex<HashMap<usize, Weak<SharedRegister>>>);

impl Registers {
    /// The register at this address.
    ///
    /// # Safety
    /// It is aligned to 8 and valid for writes of `2 * size` bytes as long as the returned value lives, and
    /// is only written through what this returns.
    pub unsafe fn at(&self, register: NonNull<u64>, size: usize) -> Arc<SharedRegister> {
        let mut registers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let address = register.addr().get();
        if let Some(there) = registers.get(&address).and_then(Weak::upgrade) {
            return there;
        }
        registers.retain(|_, register| register.strong_count() != 0);
        // SAFETY: the caller guarantees that the register is aligned, valid, and only written through this.
        let made = Arc::new(unsafe { SharedRegister::new(register, size, wait_after) });
        registers.insert(address, Arc::downgrade(&made));
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_address_is_one_register_as_long_as_it_is_used() {
        let registers = Registers::default();
        let mut memory = [[0_u64; 64]; 2];
        let [first, second] = memory.each_mut().map(|memory| NonNull::from(memory).cast());
        // SAFETY: the memory is aligned and outlives the registers.
        let at = |register| unsafe { registers.at(register, 256) };
        let (a, b) = (at(first), at(first));
        assert!(Arc::ptr_eq(&a, &b));
        assert!(!Arc::ptr_eq(&a, &at(second)));
        drop((a, b));
        let _again = at(first);
        assert_eq!(registers.0.lock().unwrap().len(), 1, "forgotten");
    }
}
