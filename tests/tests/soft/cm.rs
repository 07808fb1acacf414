//! Connections by the software HCA's communication manager: each of its events is caused, and what
//! became of the connection and its requests is looked at.

mod admission;
mod events;
mod handles;
mod hostile;
mod input;
mod links;
mod on_id;
mod services;
mod world;
