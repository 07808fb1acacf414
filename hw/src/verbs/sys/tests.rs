//! Sizes and offsets, as C has them.
