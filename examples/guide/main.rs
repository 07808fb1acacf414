//! The programs of the guide (docs/guide): each chapter shows parts of one of these modules, and all run here.

mod ends;
mod grant;
mod memory;
mod outcomes;
mod posting;
mod recorder;
mod server;
mod sleeping;
mod tcp;

type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

fn main() -> Result {
    for (name, chapter) in [
        ("memory", memory::run as fn() -> Result),
        ("posting", posting::run),
        ("sleeping", sleeping::run),
        ("tcp", tcp::run),
        ("server", server::run),
        ("outcomes", outcomes::run),
        ("grant", grant::run),
        ("recorder", recorder::run),
    ] {
        chapter().map_err(|error| format!("{name}: {error}"))?;
        println!("{name}: done");
    }
    Ok(())
}
