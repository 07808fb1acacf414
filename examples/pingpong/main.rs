//! Pingpong with rdma-core's ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong and ibv_srq_pingpong,
//! or with itself.
//!
//! ```text
//! cargo run --release --example pingpong -- -d soft:here               the server
//! cargo run --release --example pingpong -- -d soft:here localhost     the client
//! cargo run --release --example pingpong -- -t ud -d rxe0 -g 1 HOST    the client of an ibv_ud_pingpong
//! cargo run --release --example pingpong -- --help
//! ```

mod args;
mod content;
mod dest;
mod device;
mod end;
mod memory;
mod play;
mod service;

use anyhow::Result;
use args::{Game, Kind};
use bellwire::connect::tcp::{Connection, Listener};
use bellwire::wqe::{Rc, Uc, Ud};
use dest::{Dest, Exchange};
use end::End;
use play::{Player, arm};
use service::Service;
use std::io::Write;
use std::process::ExitCode;
use std::time::{Duration, Instant};

fn main() -> ExitCode {
    let game = Game::parse();
    let played = match game.kind {
        Kind::Rc | Kind::Srq => play::<Rc>(&game),
        Kind::Uc => play::<Uc>(&game),
        Kind::Ud => play::<Ud>(&game),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> Result<()> {
    writeln!(std::io::stdout(), "{text}")?;
    Ok(())
}

fn play<T: Service>(game: &Game) -> Result<()> {
    // Before anything else, for whether the port is free.
    let listener = match game.host {
        Some(_) => None,
        None => Some(Listener::bind(None, game.port)?),
    };
    let mut end = End::<T>::new(game)?;
    arm(&mut end)?;
    if let Some(listener) = &listener {
        print(&format!("listening on port {}", listener.port()))?;
    }
    for dest in end.ours() {
        print(&format!("  local address:  {dest}"))?;
    }
    meet(game, listener, &mut end)?;
    let begun = Instant::now();
    Player::new(game, &mut end)?.play()?;
    report(game, begun.elapsed())
}

/// Exchanges addresses with the peer, and connects.
fn meet<T: Service>(game: &Game, listener: Option<Listener>, end: &mut End<T>) -> Result<()> {
    // ibv_srq_pingpong's most, whether it has them or not.
    let lines = if game.kind == Kind::Srq { 256 } else { 1 };
    let exchange = |peer| Exchange::new(peer, lines, game.timeout);
    let ours = end.ours().to_vec();
    let mut connect = |theirs: &[Dest]| {
        for dest in theirs {
            print(&format!("  remote address: {dest}"))?;
        }
        end.connect(theirs)
    };
    match (&game.host, listener) {
        (Some(host), _) => {
            let peer = Connection::connect(host, game.port, game.timeout)?;
            connect(&exchange(peer).ask(&ours)?)
        }
        (None, listener) => {
            let listener = listener.expect("bound for a server");
            let peer = listener.accept(game.timeout)?;
            // Nobody else is waited for.
            drop(listener);
            exchange(peer).answer(&ours, connect)
        }
    }
}

/// In their words.
fn report(game: &Game, took: Duration) -> Result<()> {
    let Game { iters, size, .. } = *game;
    let seconds = took.as_secs_f64();
    let bytes = u128::from(size) * u128::from(iters) * 2;
    print(&format!(
        "{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec",
        bytes as f64 * 8.0 / (seconds * 1e6)
    ))?;
    print(&format!(
        "{iters} iters in {seconds:.2} seconds = {:.2} usec/iter",
        seconds * 1e6 / iters as f64
    ))
}
