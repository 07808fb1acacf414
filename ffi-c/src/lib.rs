//! Being set up.
