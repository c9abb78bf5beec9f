mod batch;

pub use batch::{Batch, JobWrite};
