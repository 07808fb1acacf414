//! Steps through `benches/steps` instruction by instruction, by the debugger's interface of qemu-user:
//! counts the instructions of each operation, and notes the order of the stores that a device sees and of
//! the barriers between them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};

/// Far more than any operation takes.
const MOST: usize = 10_000;

/// Far more than qemu takes to start.
const SOON: Duration = Duration::from_secs(600);

/// What stepping has to know of a processor.
#[derive(Debug)]
pub struct Processor {
    /// As qemu and Rust call it.
    pub name: &'static str,
    /// The number of the program counter in the debugger's interface.
    counter: u32,
    /// The breakpoint instruction.
    breakpoint: &'static [u8],
    /// Instructions to note: name, encoding, and which bits of it count.
    noted: &'static [(&'static str, u32, u32)],
}

const ALL: u32 = u32::MAX;

/// Those that bellwire's tests run on.
pub const PROCESSORS: [Processor; 2] = [
    Processor {
        name: "aarch64",
        counter: 32,
        breakpoint: &[0x00, 0x00, 0x20, 0xd4],
        noted: &[
            ("dmb oshld", 0xd503_31bf, ALL),
            ("dmb oshst", 0xd503_32bf, ALL),
            ("dmb ishld", 0xd503_39bf, ALL),
            ("dmb ishst", 0xd503_3abf, ALL),
            ("dmb ish", 0xd503_3bbf, ALL),
            ("dsb st", 0xd503_3e9f, ALL),
            ("dgh", 0xd503_20df, ALL),
            ("stlr", 0x889f_fc00, 0xbfff_fc00),
            ("st1", 0x0c00_2000, 0xbfff_f000),
        ],
    },
    Processor {
        name: "x86_64",
        counter: 16,
        breakpoint: &[0xcc],
        noted: &[
            ("lfence", 0x00e8_ae0f, 0x00ff_ffff),
            ("mfence", 0x00f0_ae0f, 0x00ff_ffff),
            ("sfence", 0x00f8_ae0f, 0x00ff_ffff),
            ("lock", 0xf0, 0xff),
        ],
    },
];

/// One operation.
#[derive(Debug, PartialEq, Eq)]
pub struct Stepped {
    pub name: String,
    pub instructions: usize,
    /// Instructions that were noted, and what the device sees changed: a place, and the bytes in it.
    /// Changes that follow each other upwards in one place are one.
    pub order: Vec<String>,
}

/// Steps through the operations of this program.
///
/// # Errors
/// qemu cannot be started, or ended early, or the program is not `benches/steps`.
pub fn step(processor: &Processor, sysroot: &str, program: &Path) -> Result<Vec<Stepped>> {
    let dir = tempfile::tempdir()?;
    let socket = dir.path().join("gdb");
    let mut qemu = Command::new(format!("qemu-{}", processor.name));
    qemu.args(["-L", sysroot, "-g"]).arg(&socket).arg(program);
    let mut qemu = qemu
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start qemu-user")?;
    let out = qemu.stdout.take().context("a pipe")?;
    let stepped = connect(&socket)
        .and_then(Debugger::new)
        .and_then(|debugger| operations(processor, debugger, BufReader::new(out)));
    // It has ended, or nobody steps it any further.
    let _ = qemu.kill();
    qemu.wait()?;
    stepped
}

fn connect(socket: &Path) -> Result<UnixStream> {
    let begun = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return Ok(stream),
            Err(error) if begun.elapsed() > SOON => return Err(error).context("qemu-user"),
            Err(_) => thread::sleep(Duration::from_millis(20)),
        }
    }
}

fn operations(
    processor: &Processor,
    mut debugger: Debugger,
    mut out: impl BufRead,
) -> Result<Vec<Stepped>> {
    // Registers can be named one by one only after this.
    debugger.ask("qXfer:features:read:target.xml:0,ffb")?;
    let mut stepped = Vec::new();
    loop {
        let stop = debugger.ask("c")?;
        if stop.starts_with('W') {
            ensure!(stop == "W00", "the program ended with {stop}");
            return Ok(stepped);
        }
        ensure!(stop.starts_with("T05"), "the program stopped with {stop}");
        let mut line = String::new();
        out.read_line(&mut line)?;
        stepped.push(operation(processor, &mut debugger, line.trim_end())?);
    }
}

/// Memory that the device reads.
struct Place {
    name: String,
    start: u64,
    bytes: Vec<u8>,
}

fn operation(processor: &Processor, debugger: &mut Debugger, line: &str) -> Result<Stepped> {
    let mut fields = line.split('\t');
    let name = fields.next().context("a name")?.to_owned();
    let mut places = Vec::new();
    while let Some(name) = fields.next() {
        let mut number = || -> Result<u64> {
            let field = fields.next().context("too few fields")?;
            Ok(u64::from_str_radix(field, 16)?)
        };
        let (start, len) = (number()?, number()?);
        places.push(Place {
            name: name.to_owned(),
            start,
            bytes: debugger.memory(start, len as usize)?,
        });
    }
    // aarch64 stops at the breakpoint, x86-64 behind it.
    let at = debugger.counter(processor)?;
    let length = processor.breakpoint.len();
    if debugger.memory(at, length)? == processor.breakpoint {
        debugger.go_to(processor, at + length as u64)?;
    }
    let mut order = Order::default();
    for instructions in 0..MOST {
        let at = debugger.counter(processor)?;
        let code = debugger.memory(at, 4)?;
        if code.starts_with(processor.breakpoint) {
            debugger.go_to(processor, at + length as u64)?;
            let order = order.lines();
            return Ok(Stepped {
                name,
                instructions,
                order,
            });
        }
        let word = u32::from_le_bytes(code.try_into().unwrap_or_default());
        let noted = processor
            .noted
            .iter()
            .find(|(_, bits, mask)| word & mask == *bits);
        if let Some((name, ..)) = noted {
            order.instruction(name);
        }
        debugger.ask("s")?;
        for place in &mut places {
            let now = debugger.memory(place.start, place.bytes.len())?;
            order.change(&place.name, &place.bytes, &now);
            place.bytes = now;
        }
    }
    bail!("{name}: no end after {MOST} instructions")
}

/// What came after what.
#[derive(Default)]
struct Order(Vec<(String, Option<(usize, usize)>)>);

impl Order {
    fn instruction(&mut self, name: &str) {
        self.0.push((name.to_owned(), None));
    }

    fn change(&mut self, place: &str, before: &[u8], now: &[u8]) {
        let changed = |at: &usize| before[*at] != now[*at];
        let (Some(first), Some(last)) = (
            (0..now.len()).find(changed),
            (0..now.len()).rev().find(changed),
        ) else {
            return;
        };
        // Whole words: a byte that is stored as it was does not change.
        let (first, end) = (first & !7, (last | 7) + 1);
        match self.0.last_mut() {
            Some((name, Some((_, old)))) if name == place && *old <= first => *old = end,
            _ => self.0.push((place.to_owned(), Some((first, end)))),
        }
    }

    /// Of records, which are one word, and rings, which are filled in any order, only that they changed.
    fn lines(self) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for (name, range) in self.0 {
            let line = match range {
                Some((start, end)) if name == "register" => {
                    format!("{name} {} to {}", start % 256, end - start / 256 * 256)
                }
                _ => name,
            };
            if lines.last() != Some(&line) {
                lines.push(line);
            }
        }
        lines
    }
}

/// The debugger's side of a connection with qemu-user.
struct Debugger {
    stream: UnixStream,
    input: BufReader<UnixStream>,
}

impl Debugger {
    fn new(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(SOON))?;
        let input = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, input })
    }

    /// Sends a request, and returns the reply.
    fn ask(&mut self, request: &str) -> Result<String> {
        let sum = request.bytes().fold(0_u8, u8::wrapping_add);
        write!(self.stream, "${request}#{sum:02x}")?;
        let mut skipped = Vec::new();
        self.input.read_until(b'$', &mut skipped)?;
        let mut reply = Vec::new();
        self.input.read_until(b'#', &mut reply)?;
        let mut sum = [0; 2];
        self.input.read_exact(&mut sum).context("qemu-user ended")?;
        self.stream.write_all(b"+")?;
        reply.pop();
        Ok(String::from_utf8_lossy(&reply).into_owned())
    }

    fn memory(&mut self, start: u64, len: usize) -> Result<Vec<u8>> {
        // qemu's packets have 4 KiB.
        const PART: usize = 1024;
        let mut all = Vec::new();
        for at in (0..len).step_by(PART) {
            let part = PART.min(len - at);
            let bytes = bytes(&self.ask(&format!("m{:x},{part:x}", start + at as u64))?)?;
            ensure!(bytes.len() == part, "cannot read at {start:#x}");
            all.extend(bytes);
        }
        Ok(all)
    }

    fn counter(&mut self, processor: &Processor) -> Result<u64> {
        let value = bytes(&self.ask(&format!("p{:x}", processor.counter))?)?;
        let value = value.try_into().ok().context("no program counter")?;
        Ok(u64::from_le_bytes(value))
    }

    fn go_to(&mut self, processor: &Processor, at: u64) -> Result<()> {
        let value = format!("{:016x}", at.swap_bytes());
        let reply = self.ask(&format!("P{:x}={value}", processor.counter))?;
        ensure!(reply == "OK", "cannot go on: {reply}");
        Ok(())
    }
}

/// The bytes that hexadecimal digits stand for.
fn bytes(digits: &str) -> Result<Vec<u8>> {
    (0..digits.len() / 2)
        .map(|at| {
            let two = digits.get(2 * at..2 * at + 2).context("digits")?;
            Ok(u8::from_str_radix(two, 16)?)
        })
        .collect()
}
