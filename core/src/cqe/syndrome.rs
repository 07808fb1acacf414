//! Error syndromes: why a request failed, in the device's codes.

use crate::wr::WcStatus;

/// The syndrome of an error CQE (`MLX5_CQE_SYNDROME_*`). Numbers without a name are kept as they
/// are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Syndrome(pub u8);

macro_rules! syndromes {
    ($($name:ident = $value:literal => $status:ident, $doc:literal;)*) => {
        impl Syndrome {
            /// No syndrome.
            pub const NONE: Self = Self(0);
            $(#[doc = $doc] pub const $name: Self = Self($value);)*

            /// Every syndrome that has a name.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The syndrome for this status; `None` where there is none.
            #[inline]
            pub const fn of(status: WcStatus) -> Option<Self> {
                match status {
                    $(WcStatus::$status => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its verbs status; syndromes without a name are general errors.
            #[inline]
            pub const fn status(self) -> WcStatus {
                match self.0 {
                    $($value => WcStatus::$status,)*
                    _ => WcStatus::GeneralErr,
                }
            }
        }
    };
}

syndromes! {
    LOCAL_LENGTH = 0x01 => LocLenErr, "A message did not fit the receive, or a length is not allowed.";
    LOCAL_QP_OP = 0x02 => LocQpOpErr, "The queue pair cannot do this, or the entry is malformed.";
    LOCAL_PROT = 0x04 => LocProtErr, "A local key does not cover the memory or the access.";
    WR_FLUSH = 0x05 => WrFlushErr, "Flushed: the queue pair was in an error state before the request was finished.";
    MW_BIND = 0x06 => MwBindErr, "A memory window could not be bound.";
    BAD_RESP = 0x10 => BadRespErr, "The responder sent something that was not expected.";
    LOCAL_ACCESS = 0x11 => LocAccessErr, "A local protection error while data came in.";
    REMOTE_INVAL_REQ = 0x12 => RemInvReqErr, "The responder found the request invalid.";
    REMOTE_ACCESS = 0x13 => RemAccessErr, "The responder's key does not cover the memory or the access.";
    REMOTE_OP = 0x14 => RemOpErr, "The responder could not do it.";
    TRANSPORT_RETRY_EXC = 0x15 => RetryExcErr, "The responder did not answer within the retries.";
    RNR_RETRY_EXC = 0x16 => RnrRetryExcErr, "The responder had no receive posted within the retries.";
    REMOTE_ABORTED = 0x22 => RemAbortErr, "The responder gave the operation up.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_differ_and_the_rest_is_general() {
        for (i, a) in Syndrome::ALL.iter().enumerate() {
            assert_ne!(a.status(), WcStatus::GeneralErr);
            assert_eq!(Syndrome::of(a.status()), Some(*a));
            for b in &Syndrome::ALL[i + 1..] {
                assert_ne!(a.status(), b.status());
            }
        }
        let general = (0..=u8::MAX)
            .filter(|&number| Syndrome(number).status() == WcStatus::GeneralErr)
            .count();
        assert_eq!(general, 256 - 13);
    }
}
