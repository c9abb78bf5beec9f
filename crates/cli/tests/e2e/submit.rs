//! Many callers of one program that share a client of the SDK.

use crate::{cluster::Cluster, process::until_true};
use futures::future::join_all;
use hodei_sdk::{Client, ClientError, Job, JobId, json};
use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

const CALLERS: usize = 48;
const EACH: usize = 10;

fn job(caller: usize, number: usize) -> Job {
    Job::task("count", &json!([caller, number])).name(format!("{caller}.{number}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_requests_and_a_bad_job_harms_no_neighbour() {
    let cluster = Cluster::start().await;
    let client =
        Client::connect(&cluster.grpc).and_then(|client| client.token(&cluster.api_token)).expect("an address");
    let callers = (0..CALLERS).map(|caller| {
        let client = client.clone();
        tokio::spawn(async move {
            let mut ids = Vec::new();
            for number in 0..EACH {
                // One in four has something in each round that no server takes.
                if caller % 4 == 0 {
                    let refused = client.submit(job(caller, number).queue("no such\nqueue")).await;
                    match refused {
                        Err(ClientError::Refused(why)) => assert!(why.contains("job.queue"), "{why}"),
                        other => panic!("{other:?}"),
                    }
                }
                ids.push((format!("{caller}.{number}"), client.submit(job(caller, number)).await.expect("an id")));
            }
            ids
        })
    });
    let mut acknowledged = Vec::new();
    for ids in join_all(callers).await {
        acknowledged.extend(ids.expect("no panic"));
    }
    let bulk = client.submit_all((0..100).map(|number| job(CALLERS, number))).await.expect("ids");
    acknowledged.extend(bulk.into_iter().enumerate().map(|(number, id)| (format!("{CALLERS}.{number}"), id)));
    let none = client.submit_all([job(0, 0), job(0, 1).queue("no such\nqueue")]).await;
    assert!(matches!(&none, Err(ClientError::Refused(why)) if why.contains("jobs[1].queue")), "{none:?}");

    let mut stored: Vec<_> =
        cluster.list().await.into_iter().map(|job| (job.spec.unwrap_or_default().name, job.id)).collect();
    let mut acknowledged: Vec<_> = acknowledged.into_iter().map(|(name, id)| (name, id.to_string())).collect();
    stored.sort();
    acknowledged.sort();
    assert_eq!(stored, acknowledged, "each is stored once, under the id that its caller was given");
    assert_eq!(stored.len(), CALLERS * EACH + 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_callers_were_told_is_stored_survives_a_killed_server() {
    let mut cluster = Cluster::start().await;
    let client =
        Client::connect(&cluster.grpc).and_then(|client| client.token(&cluster.api_token)).expect("an address");
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let callers: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (client, over, count) = (client.clone(), Arc::clone(&over), Arc::clone(&count));
            tokio::spawn(async move {
                let (mut ids, mut number) = (Vec::new(), 0);
                while !over.load(Ordering::Relaxed) {
                    number += 1;
                    match client.submit(job(caller, number)).await {
                        Ok(id) => {
                            ids.push(id);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(ClientError::Unavailable(_)) => tokio::time::sleep(Duration::from_millis(20)).await,
                        Err(other) => panic!("{other:?}"),
                    }
                }
                ids
            })
        })
        .collect();
    for _ in 0..3 {
        let enough = count.load(Ordering::Relaxed) + 500;
        until_true("more are acknowledged", || count.load(Ordering::Relaxed) >= enough).await;
        cluster.crash_server().await;
    }
    let last = count.load(Ordering::Relaxed) + 100;
    until_true("the same client goes on", || count.load(Ordering::Relaxed) >= last).await;
    over.store(true, Ordering::Relaxed);
    let mut acknowledged = Vec::<JobId>::new();
    for ids in join_all(callers).await {
        acknowledged.extend(ids.expect("no panic"));
    }
    let unique: HashSet<String> = acknowledged.iter().map(JobId::to_string).collect();
    assert_eq!(unique.len(), acknowledged.len(), "no id is given twice");
    let stored: HashSet<String> = cluster.list().await.into_iter().map(|job| job.id).collect();
    let lost: Vec<_> = unique.difference(&stored).collect();
    assert!(lost.is_empty(), "{} of {} are lost: {lost:?}", lost.len(), unique.len());
}

#[tokio::test]
async fn an_address_that_is_none_is_said_to_be_none() {
    let wrong = ["", "localhost", "not an address"].map(|address| Client::connect(address).err());
    assert!(wrong.iter().all(|error| matches!(error, Some(ClientError::Address(_)))), "{wrong:?}");
    let nobody = Client::connect("http://127.0.0.1:1").expect("an address").submit(job(0, 0)).await;
    assert!(matches!(nobody, Err(ClientError::Unavailable(_))), "{nobody:?}");
}
