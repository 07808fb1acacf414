//! Commands: taking them apart, and whom they go to.

mod cq;
mod device;
mod memory;
mod qp;
mod qp_attr;
mod srq;

use crate::abi::{CmdHdr, EXTENDED, ExCmdHdr, number};
use crate::context::{Context, File};
use crate::memory as program;
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Bytes of a command at the most: far more than any has.
pub const LONGEST: usize = 1 << 14;

/// What a command gives and takes.
struct Request<'a> {
    /// What stands behind the headers and the response's address, and was not read yet.
    input: &'a [u8],
    response: u64,
    /// Bytes of the response that the program has room for.
    room: usize,
    extended: bool,
}

impl Request<'_> {
    /// Takes the command's own structure.
    ///
    /// # Errors
    /// `EINVAL`: it is shorter.
    fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (taken, rest) = T::read_from_prefix(self.input).map_err(|_| Errno::INVAL)?;
        self.input = rest;
        Ok(taken)
    }

    /// Takes the driver's structure. An older library's is shorter, and ends with zeros.
    fn take_driver<T: FromBytes + IntoBytes + Immutable + Default>(&mut self) -> T {
        let mut taken = T::new_zeroed();
        let there = self.input.len().min(size_of::<T>());
        taken.as_mut_bytes()[..there].copy_from_slice(&self.input[..there]);
        self.input = &self.input[there..];
        taken
    }

    /// Answers: the command's structure has to fit, of the driver's what does.
    ///
    /// # Errors
    /// `ENOSPC`, `EFAULT`.
    fn answer(&self, own: &impl Bytes, driver: &impl Bytes) -> Result<(), Errno> {
        let (own, driver) = (own.as_bytes(), driver.as_bytes());
        if own.len() > self.room {
            return Err(Errno::NOSPC);
        }
        let driver = &driver[..driver.len().min(self.room - own.len())];
        program::write(self.response, &[own, driver].concat())
    }

    /// Makes sure that there is room for an answer, before anything is changed.
    ///
    /// # Errors
    /// As [`answer`](Self::answer).
    fn check_room<T>(&self) -> Result<(), Errno> {
        if self.room < size_of::<T>() || self.room > LONGEST {
            return Err(Errno::NOSPC);
        }
        program::write(self.response, &vec![0; self.room])
    }
}

/// A structure without padding.
trait Bytes: IntoBytes + Immutable {}
impl<T: IntoBytes + Immutable> Bytes for T {}

/// Nothing: of a driver that adds nothing.
const NONE: [u8; 0] = [];

impl File {
    /// Carries out a command.
    ///
    /// # Errors
    /// What the kernel answers.
    pub fn command(&self, bytes: &[u8]) -> Result<(), Errno> {
        let (header, rest) = CmdHdr::read_from_prefix(bytes).map_err(|_| Errno::INVAL)?;
        let extended = header.command & EXTENDED != 0;
        let (in_words, out_words) = (usize::from(header.in_words), usize::from(header.out_words));
        let (mut request, expected) = if extended {
            let (more, input) = ExCmdHdr::read_from_prefix(rest).map_err(|_| Errno::INVAL)?;
            let words = in_words + usize::from(more.provider_in_words);
            let headers = size_of::<CmdHdr>() + size_of::<ExCmdHdr>();
            let request = Request {
                input,
                response: more.response,
                room: (out_words + usize::from(more.provider_out_words)) * 8,
                extended,
            };
            (request, headers + words * 8)
        } else {
            let request = Request {
                input: rest,
                response: 0,
                room: out_words * 4,
                extended,
            };
            (request, in_words * 4)
        };
        if bytes.len() != expected {
            return Err(Errno::INVAL);
        }
        let number = header.command & !EXTENDED;
        if !extended && answers(number) {
            request.response = request.take()?;
        }
        if number == number::GET_CONTEXT && !extended {
            return device::get_context(self, &mut request);
        }
        let context = self.context().ok_or(Errno::INVAL)?;
        carry_out(context, number, &mut request)
    }
}

/// Whether a command's own structure begins with the response's address.
fn answers(number: u32) -> bool {
    !matches!(
        number,
        number::DEALLOC_PD
            | number::DEREG_MR
            | number::DEALLOC_MW
            | number::MODIFY_QP
            | number::ATTACH_MCAST
            | number::DETACH_MCAST
            | number::MODIFY_SRQ
            | number::CLOSE_XRCD
    )
}

fn carry_out(context: &Context, number: u32, request: &mut Request<'_>) -> Result<(), Errno> {
    match (number, request.extended) {
        (number::QUERY_DEVICE, _) => device::query_device(context, request),
        (number::CREATE_CQ, _) => cq::create(context, request),
        (number::CREATE_QP, _) => qp::create(context, request),
        (number::MODIFY_QP, _) => qp::modify(context, request),
        (_, true) => Err(Errno::OPNOTSUPP),
        (number::QUERY_PORT, _) => device::query_port(context, request),
        (number::CREATE_COMP_CHANNEL, _) => device::create_comp_channel(context, request),
        (number::ALLOC_PD, _) => memory::alloc_pd(context, request),
        (number::DEALLOC_PD, _) => memory::dealloc_pd(context, request),
        (number::REG_MR, _) => memory::reg_mr(context, request),
        (number::DEREG_MR, _) => memory::dereg_mr(context, request),
        (number::ALLOC_MW, _) => memory::alloc_mw(context, request),
        (number::DEALLOC_MW, _) => memory::dealloc_mw(context, request),
        (number::OPEN_XRCD, _) => memory::open_xrcd(context, request),
        (number::CLOSE_XRCD, _) => memory::close_xrcd(context, request),
        (number::RESIZE_CQ, _) => cq::resize(context, request),
        (number::DESTROY_CQ, _) => cq::destroy(context, request),
        (number::QUERY_QP, _) => qp::query(context, request),
        (number::DESTROY_QP, _) => qp::destroy(context, request),
        (number::ATTACH_MCAST, _) => qp::attach_mcast(context, request),
        (number::DETACH_MCAST, _) => qp::detach_mcast(context, request),
        (number::CREATE_SRQ, _) => srq::create(context, request),
        (number::OPEN_QP, _) => qp::open(context, request),
        (number::CREATE_XSRQ, _) => srq::create_xsrq(context, request),
        (number::MODIFY_SRQ, _) => srq::modify(context, request),
        (number::QUERY_SRQ, _) => srq::query(context, request),
        (number::DESTROY_SRQ, _) => srq::destroy(context, request),
        _ => Err(Errno::OPNOTSUPP),
    }
}

/// Whether somebody still is in a thing that is to go.
fn check_unused(users: &std::sync::Arc<()>) -> Result<(), Errno> {
    if std::sync::Arc::strong_count(users) > 1 {
        return Err(Errno::BUSY);
    }
    Ok(())
}
