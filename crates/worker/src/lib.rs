pub mod executor;
pub mod guardian;
