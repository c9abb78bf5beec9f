//! One subprocess after the other in one place: started, spoken with, and started again when it dies.

use super::{
    Order, Request, Said,
    message::{Frames, FromProcess, MAX_FRAME, ToProcess, VERSION, frame},
};
use crate::{
    end::{self, fatal},
    executor::{Lines, ServiceCommand, ServicePipes, ServiceSlot, Tail},
    handlers::{Done, TaskError},
};
use hodei_core::state::{Failure, FailureKind};
use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::AsFd,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    select,
    sync::{Mutex, mpsc, watch},
    time::{Instant, interval, sleep, sleep_until, timeout},
};
use tracing::{info, warn};

/// How long a new one may take to say hello.
const GREETING: Duration = Duration::from_secs(30);
/// How long one may take to end when it is told to.
const PARTING: Duration = Duration::from_secs(2);
/// One that sends no frame for so many heartbeats hangs.
const MISSED: u32 = 3;
/// The pause before the first new start. Each further one is twice as long, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// One that has lived so long has not failed to start.
const STEADY: Duration = Duration::from_secs(10);
const READ: usize = 64 << 10;

/// What the processes of one handler share.
#[derive(Debug)]
pub(super) struct Shared {
    /// For the log.
    pub name: String,
    pub command: ServiceCommand,
    pub heartbeat: Duration,
    pub concurrency: u32,
    /// Tasks that no process has taken yet.
    pub waiting: Mutex<mpsc::UnboundedReceiver<Request>>,
    /// Processes that take tasks.
    pub up: AtomicU32,
    pub closing: watch::Receiver<bool>,
}

/// What became of the first start.
pub(super) type Greeting = Result<BTreeSet<String>, String>;

pub(super) struct Keeper {
    pub shared: Arc<Shared>,
    pub slot: ServiceSlot,
    pub greeted: watch::Sender<Option<Greeting>>,
}

/// Why a process is no longer spoken with.
enum Parting {
    /// The worker ends.
    Closing,
    Died(Failure),
}

impl Keeper {
    pub(super) async fn run(mut self) {
        let mut pause = FIRST_PAUSE;
        loop {
            let began = Instant::now();
            let Parting::Died(failure) = self.live().await else { return };
            let message = &failure.message;
            warn!(handler = self.shared.name, message, "a subprocess died and is started again");
            if began.elapsed() > STEADY {
                pause = FIRST_PAUSE;
            }
            if self.greeted.borrow().is_none() {
                _ = self.greeted.send_replace(Some(Err(told(&failure))));
            }
            self.fail_waiting(&failure).await;
            let mut closing = self.shared.closing.clone();
            select! {
                () = sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                _ = closing.wait_for(|closing| *closing) => return,
            }
        }
    }

    /// When no process is left that could take them, those who wait hear of it now.
    async fn fail_waiting(&self, failure: &Failure) {
        if self.shared.up.load(Ordering::SeqCst) > 0 {
            return;
        }
        let mut waiting = self.shared.waiting.lock().await;
        while let Ok(request) = waiting.try_recv() {
            _ = request.said.send(Said::Ended(Err(TaskError::of(failure.clone())))).await;
        }
    }

    /// Starts a process and speaks with it until it has ended.
    async fn live(&mut self) -> Parting {
        let pipes = match self.slot.start(&self.shared.command).await {
            Ok(pipes) => pipes,
            Err(failure) => return Parting::Died(failure),
        };
        let ServicePipes { stdin, stdout, stderr } = pipes;
        let (frames, for_writer) = mpsc::unbounded_channel();
        let writer = tokio::spawn(write(stdin, for_writer));
        let mut talk = Talk {
            shared: Arc::clone(&self.shared),
            frames,
            incoming: Frames::default(),
            stdout,
            stderr: Errors { pipe: stderr, lines: Lines::default(), tail: Tail::default() },
            jobs: HashMap::new(),
            concurrency: 0,
        };
        let end = self.talk(&mut talk).await;
        talk.silence();
        let ended = match end {
            Stop::Ended(failure) => failure,
            Stop::Kill(problem) => {
                self.slot.kill();
                let ended = self.slot.ended().await;
                Failure { message: problem, ..ended }
            }
            Stop::Closing => {
                talk.send(&ToProcess::Shutdown);
                if timeout(PARTING, self.slot.ended()).await.is_err() {
                    self.slot.kill();
                    self.slot.ended().await;
                }
                writer.abort();
                return Parting::Closing;
            }
        };
        writer.abort();
        Parting::Died(talk.bury(ended).await)
    }

    async fn talk(&mut self, talk: &mut Talk) -> Stop {
        let greeting = match timeout(GREETING, self.greet(talk)).await {
            Ok(Ok(types)) => types,
            Ok(Err(stop)) => return stop,
            Err(_) => return Stop::Kill(format!("subprocess killed: it said no hello within {GREETING:?}")),
        };
        let known = self.greeted.borrow().clone();
        match known {
            Some(Ok(known)) if known != greeting => {
                return Stop::Kill("subprocess killed: it handles other types than the one before it".to_owned());
            }
            Some(Ok(_)) => {}
            _ => _ = self.greeted.send_replace(Some(Ok(greeting))),
        }
        self.shared.up.fetch_add(1, Ordering::SeqCst);
        let stop = self.serve(talk).await;
        self.shared.up.fetch_sub(1, Ordering::SeqCst);
        stop
    }

    /// Says hello, and waits for the answer.
    async fn greet(&mut self, talk: &mut Talk) -> Result<BTreeSet<String>, Stop> {
        let (heartbeat_ms, concurrency) = (self.shared.heartbeat.as_millis() as u64, self.shared.concurrency);
        talk.send(&ToProcess::Hello { version: VERSION, heartbeat_ms, max_frame: MAX_FRAME, concurrency });
        loop {
            let message = talk.incoming.next().map_err(unreadable)?;
            match message {
                Some(FromProcess::Hello { version: VERSION, task_types, concurrency }) => {
                    talk.concurrency = concurrency.unwrap_or(u32::MAX).min(self.shared.concurrency).max(1) as usize;
                    return Ok(task_types.into_iter().collect());
                }
                Some(FromProcess::Hello { version, .. }) => {
                    return Err(Stop::Kill(format!("subprocess killed: it speaks version {version}, not {VERSION}")));
                }
                Some(FromProcess::Heartbeat { .. }) => {}
                Some(_) => return Err(Stop::Kill("subprocess killed: its first frame is not a hello".to_owned())),
                None => select! {
                    read = talk.stdout.read_buf(&mut talk.incoming.buffer) => {
                        if !matches!(read, Ok(1..)) {
                            return Err(Stop::Ended(self.slot.ended().await));
                        }
                    }
                    () = talk.stderr.read() => talk.tell_lines(false).await,
                    failure = self.slot.ended() => return Err(Stop::Ended(failure)),
                },
            }
        }
    }

    async fn serve(&mut self, talk: &mut Talk) -> Stop {
        let shared = Arc::clone(&self.shared);
        let (orders, mut ordered) = mpsc::unbounded_channel();
        let mut closing = shared.closing.clone();
        let mut beats = interval(shared.heartbeat);
        let limit = shared.heartbeat * MISSED;
        // The time that it was listened to and said nothing. While others are slow to take what it says, it cannot speak.
        let mut silent = Duration::ZERO;
        loop {
            match talk.take_frames().await {
                Ok(0) => {}
                Ok(_) => silent = Duration::ZERO,
                Err(stop) => return stop,
            }
            let listening = Instant::now();
            let event = select! {
                read = talk.stdout.read_buf(&mut talk.incoming.buffer) => Event::Output(matches!(read, Ok(1..))),
                () = talk.stderr.read() => Event::Errors,
                request = next(&shared.waiting), if talk.jobs.len() < talk.concurrency => Event::Request(request),
                Some(order) = ordered.recv() => Event::Order(order),
                _ = beats.tick() => Event::Beat,
                () = sleep_until(listening + limit.saturating_sub(silent)) => Event::Silence,
                failure = self.slot.ended() => Event::Ended(failure),
                _ = closing.wait_for(|closing| *closing) => Event::Closing,
            };
            silent += listening.elapsed();
            match event {
                Event::Output(true) => {}
                // At its end nobody can speak any more.
                Event::Output(false) => return self.closed(talk).await,
                Event::Errors => talk.tell_lines(false).await,
                Event::Request(Some(request)) => talk.take(request, &orders).await,
                Event::Order(Order::Cancel(id)) => {
                    if talk.jobs.contains_key(&id) {
                        talk.send(&ToProcess::Cancel { id });
                    }
                }
                Event::Order(Order::Kill(id)) => {
                    if talk.jobs.remove(&id).is_some() {
                        let why = "subprocess killed: a job in it did not stop when it was told to";
                        return Stop::Kill(why.to_owned());
                    }
                }
                Event::Beat => talk.send(&ToProcess::Heartbeat),
                Event::Silence => return Stop::Kill(format!("subprocess killed: no heartbeat for {limit:?}")),
                Event::Ended(failure) => return Stop::Ended(failure),
                Event::Request(None) | Event::Closing => return Stop::Closing,
            }
        }
    }

    /// It closed its side: it ends now, or is ended.
    async fn closed(&mut self, talk: &mut Talk) -> Stop {
        match timeout(talk.shared.heartbeat, self.slot.ended()).await {
            Ok(failure) => Stop::Ended(failure),
            Err(_) => Stop::Kill("subprocess killed: it closed its standard output".to_owned()),
        }
    }
}

fn told(failure: &Failure) -> String {
    match failure.detail.is_empty() {
        true => failure.message.clone(),
        false => format!("{}\n{}", failure.message, failure.detail),
    }
}

fn unreadable(problem: String) -> Stop {
    Stop::Kill(format!("subprocess killed: it sent {problem}"))
}

/// The next task that waits, for whoever has room for it.
async fn next(waiting: &Mutex<mpsc::UnboundedReceiver<Request>>) -> Option<Request> {
    waiting.lock().await.recv().await
}

/// What happens while a process is spoken with.
enum Event {
    /// False at the end of it.
    Output(bool),
    Errors,
    Request(Option<Request>),
    Order(Order),
    Beat,
    Silence,
    Ended(Failure),
    Closing,
}

enum Stop {
    /// It has ended.
    Ended(Failure),
    /// It must end, and why.
    Kill(String),
    Closing,
}

/// Writes frames as long as somebody reads them.
async fn write(mut stdin: pipe::Sender, mut frames: mpsc::UnboundedReceiver<Vec<u8>>) -> io::Result<()> {
    while let Some(mut bytes) = frames.recv().await {
        while bytes.len() < READ
            && let Ok(more) = frames.try_recv()
        {
            bytes.extend_from_slice(&more);
        }
        stdin.write_all(&bytes).await?;
    }
    Ok(())
}

/// What a process prints past the protocol.
struct Errors {
    pipe: pipe::Receiver,
    lines: Lines,
    tail: Tail,
}

impl Errors {
    /// Waits until there is something; the bytes are taken by [`Talk::tell_lines`].
    async fn read(&self) {
        if self.pipe.readable().await.is_err() {
            std::future::pending().await
        }
    }

    /// What is there now. It asks the kernel itself, since the runtime may not have heard of it yet.
    fn take(&mut self, last: bool) -> Vec<String> {
        let mut found = Vec::new();
        let mut buffer = vec![0; READ];
        // Lets the runtime know when it has to wait again.
        let by_runtime = |buffer: &mut [u8]| self.pipe.try_read(buffer).ok();
        let by_kernel = |buffer: &mut [u8]| rustix::io::read(self.pipe.as_fd(), buffer).ok();
        while let Some(size @ 1..) = by_runtime(&mut buffer).or_else(|| by_kernel(&mut buffer)) {
            self.tail.push(&buffer[..size]);
            self.lines.feed(&buffer[..size], |text, _| {
                found.push(String::from_utf8_lossy(text).into_owned());
                true
            });
        }
        let rest = last.then(|| self.lines.last()).flatten();
        found.extend(rest.map(|text| String::from_utf8_lossy(&text).into_owned()));
        found
    }
}

/// The conversation with one process.
struct Talk {
    shared: Arc<Shared>,
    frames: mpsc::UnboundedSender<Vec<u8>>,
    incoming: Frames,
    stdout: pipe::Receiver,
    stderr: Errors,
    /// What it holds, and whom to tell of it.
    jobs: HashMap<String, mpsc::Sender<Said>>,
    concurrency: usize,
}

impl Talk {
    fn send(&self, message: &ToProcess<'_>) {
        match frame(message) {
            Ok(frame) => _ = self.frames.send(frame),
            Err(problem) => warn!(problem, "a message to a subprocess cannot be sent"),
        }
    }

    /// Hands a task over, unless nobody waits for it any more.
    async fn take(&mut self, request: Request, orders: &mpsc::UnboundedSender<Order>) {
        let Request { id, frame, said } = request;
        if said.send(Said::Taken(orders.clone())).await.is_ok() {
            _ = self.frames.send(frame);
            self.jobs.insert(id, said);
        }
    }

    /// Nothing that it says counts any more: its jobs are told of its end alone.
    fn silence(&mut self) {
        self.incoming = Frames::default();
    }

    /// All that has come; returns the number of frames.
    async fn take_frames(&mut self) -> Result<usize, Stop> {
        let mut count = 0;
        while let Some(message) = self.incoming.next().map_err(unreadable)? {
            count += 1;
            self.hear(message).await?;
        }
        Ok(count)
    }

    async fn hear(&mut self, message: FromProcess) -> Result<(), Stop> {
        let (id, said) = match message {
            FromProcess::Heartbeat { id: None } => return Ok(()),
            FromProcess::Hello { .. } => return Err(unreadable("a second hello".to_owned())),
            FromProcess::Heartbeat { id: Some(id) } => (id, Said::Heartbeat),
            FromProcess::Progress { id, percent, message } => (id, Said::Progress(percent, message)),
            FromProcess::Log { id, text, stderr } => (id, Said::Log(text, stderr)),
            FromProcess::Data { id, data } => (id, Said::Data(data)),
            FromProcess::Done { id, result, children } => (id, ended(Done::value(result), children)),
            FromProcess::Snooze { id, delay_ms, children } => {
                (id, ended(Done::snooze(Duration::from_millis(delay_ms)), children))
            }
            FromProcess::Block { id, reason, children } => (id, ended(Done::block(reason), children)),
            FromProcess::Failed { id, error, detail, fatal } => {
                let failure = Failure { fatal, detail, ..Failure::new(FailureKind::Error, error) };
                (id, Said::Ended(Err(TaskError::of(failure))))
            }
        };
        if matches!(said, Said::Ended(_)) {
            // What it printed before its end belongs before it.
            self.tell_lines(false).await;
            if let Some(job) = self.jobs.remove(&id) {
                _ = job.send(said).await;
            }
        } else if let Some(job) = self.jobs.get(&id) {
            _ = job.send(said).await;
        }
        Ok(())
    }

    /// Lines that came past the protocol are those of all jobs that run, or the worker's own when none does.
    async fn tell_lines(&mut self, last: bool) {
        for line in self.stderr.take(last) {
            if self.jobs.is_empty() {
                info!(handler = self.shared.name, "{line}");
            }
            for job in self.jobs.values() {
                _ = job.send(Said::Log(line.clone(), true)).await;
            }
        }
    }

    /// The process is gone: tells those whose jobs it held, and returns what they are told.
    async fn bury(mut self, ended: Failure) -> Failure {
        self.tell_lines(true).await;
        let message = match ended.message.starts_with("subprocess") {
            true => ended.message,
            false => format!("subprocess died: {}", ended.message),
        };
        let failure = Failure { message, detail: self.stderr.tail.text(), ..ended };
        for job in self.jobs.into_values() {
            _ = job.send(Said::Ended(Err(TaskError::of(failure.clone())))).await;
        }
        failure
    }
}

/// A good end, if the children that come with it are good, too.
fn ended(done: Done, children: Vec<serde_json::Value>) -> Said {
    match end::children(children.into_iter().map(Ok)) {
        Ok(children) => Said::Ended(Ok((done, children))),
        Err(problem) => Said::Ended(Err(TaskError::of(fatal(problem)))),
    }
}
