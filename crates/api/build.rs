//! Compiles the `.proto` files. protox is a compiler written in Rust, so nothing has to be installed.

use std::{env, fs, path::PathBuf};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let files =
        ["jobs", "workers", "logs", "schedules", "queues", "events", "access", "webhooks", "providers", "scheduler"]
            .map(|name| format!("proto/hodei/v1/{name}.proto"));
    let descriptors = protox::compile(files, ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("hodei.v1.bin"), protox::prost::Message::encode_to_vec(&descriptors))?;
    tonic_prost_build::configure()
        // Rare, and larger than all that is sent often.
        .boxed(".hodei.v1.Hello.info")
        .boxed(".hodei.v1.WorkerEvent.kind.info")
        // A job is smaller without what most jobs have nothing of. Ten thousand of them then stay well below 8 MiB, from
        // where on the allocator gives memory back to the system at once, only to ask for it again with the next request.
        .boxed(".hodei.v1.JobSpec.requirements")
        .btree_map(".hodei.v1.JobSpec")
        // Read where they lie in the message.
        .bytes(".hodei.v1.Assignment.spec")
        .bytes(".hodei.v1.Assignment.job_id")
        .bytes(".hodei.v1.Assignment.execution_id")
        .bytes(".hodei.v1.Acked.results")
        .bytes(".hodei.v1.Started.execution_id")
        .bytes(".hodei.v1.Finished.execution_id")
        .codec_path("crate::wire::Codec")
        .bytes(".hodei.v1.LogChunk.data")
        .bytes(".hodei.v1.LogEntry.text")
        .compile_fds(descriptors)?;
    Ok(())
}
