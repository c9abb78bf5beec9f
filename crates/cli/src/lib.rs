//! What people write for `hodei`: its configuration and the values of its options. The rest is the program, `main.rs`.

pub mod config;
pub mod values;
