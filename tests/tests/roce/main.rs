//! RoCE v2 without sockets: two ends, and a wire or a stranger between them.

mod hostile;
mod wire;
