//! One subprocess after the other in one place: started, spoken with, and replaced as the crew decides.

use super::{
    Request, Said,
    crew::{Complaint, Crew, Order, Place},
    message::{Frames, FromProcess, MAX_FRAME, ToProcess, VERSION, frame},
};
use crate::{
    end::{self, fatal},
    executor::{Lines, ServicePipes, ServiceSlot, Tail},
    handlers::{Done, TaskError},
};
use hodei_core::state::{Failure, FailureKind};
use hodei_supervise::Cause;
use std::{
    collections::{BTreeSet, HashMap},
    io,
    os::fd::AsFd,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::unix::pipe,
    select,
    sync::{mpsc, oneshot, watch},
    time::{Instant, interval, sleep, sleep_until, timeout},
};
use tracing::{info, warn};

/// How long a new one may take to say hello.
const GREETING: Duration = Duration::from_secs(30);
/// How long one may take to end when it is told to, or has closed its output.
const PARTING: Duration = Duration::from_secs(2);
/// Before one is started again that ended with the worker's guardian.
const PAUSE: Duration = Duration::from_millis(200);
const READ: usize = 64 << 10;

/// What became of the first start: it said hello, it failed and is supervised like any other, or, if that is why, there is no
/// such command.
pub(super) enum Greeting {
    Hello,
    Failed,
    NoSuchCommand(String),
}

/// What a shell says of a command that it cannot find, or cannot run.
const NO_COMMAND: [i32; 2] = [126, 127];
/// A shell tells of the signal that ended its command by an exit code above this one.
const BY_SIGNAL: i32 = 128;
const LAST_SIGNAL: i32 = 64;

pub(super) struct Keeper {
    pub crew: Arc<Crew>,
    pub place: Place,
    pub slot: ServiceSlot,
    pub orders: mpsc::UnboundedReceiver<Order>,
    /// Who waits to hear of the first start, if that is to be now.
    pub first: Option<oneshot::Sender<Greeting>>,
}

/// Why a process is no longer there.
enum Parting {
    /// The worker ends.
    Closing,
    /// Nobody needs it.
    Retired,
    /// It was ended to make room for a new one.
    Renewed,
    /// It ended with the worker's lease or guardian, which is no fault of its own.
    Swept,
    Failed(Cause, Failure),
}

/// When the next process is started, if nobody asks before.
enum Next {
    At(Instant),
    /// The worker may run nothing at present.
    WhenLeased,
    WhenAsked,
}

impl Keeper {
    pub(super) async fn run(mut self) {
        let mut next = if self.first.is_some() { Next::At(Instant::now()) } else { Next::WhenAsked };
        while self.wait(next).await {
            let began = Instant::now();
            self.crew.starts(self.place);
            next = match self.live().await {
                Parting::Closing => return,
                Parting::Retired => {
                    self.crew.stopped(self.place, false);
                    Next::WhenAsked
                }
                Parting::Renewed => {
                    self.crew.stopped(self.place, true);
                    Next::At(Instant::now())
                }
                Parting::Swept => {
                    self.crew.stopping(self.place);
                    self.crew.stopped(self.place, true);
                    Next::WhenLeased
                }
                Parting::Failed(cause, failure) => self.failed(cause, failure, began.elapsed()),
            };
        }
    }

    fn failed(&mut self, cause: Cause, failure: Failure, lived: Duration) -> Next {
        if let Some(first) = self.first.take() {
            _ = first.send(self.first_failure(&failure));
        }
        let restart = self.crew.crashed(self.place, cause, &failure, lived);
        restart.map_or(Next::WhenAsked, Next::At)
    }

    fn first_failure(&self, failure: &Failure) -> Greeting {
        let not_found = matches!(failure.kind, FailureKind::NotStarted | FailureKind::NotFound);
        let by_shell = self.crew.by_shell && failure.exit_code.is_some_and(|code| NO_COMMAND.contains(&code));
        if not_found || by_shell { Greeting::NoSuchCommand(told(failure)) } else { Greeting::Failed }
    }

    /// As its parent saw it: the shell in between turns a signal into an exit code.
    fn seen_through_shell(&self, failure: Failure) -> Failure {
        let signal = failure.exit_code.map(|code| code - BY_SIGNAL).filter(|signal| (1..=LAST_SIGNAL).contains(signal));
        match signal.filter(|_| self.crew.by_shell) {
            Some(signal) => {
                let message = format!("killed by signal {signal}");
                Failure { message, exit_code: None, signal: Some(signal), ..failure }
            }
            None => failure,
        }
    }

    /// Waits until a process is to be started; false when the worker ends.
    async fn wait(&mut self, next: Next) -> bool {
        let mut closing = self.crew.closing.clone();
        let start = async {
            match next {
                Next::At(at) => sleep_until(at).await,
                Next::WhenLeased => {
                    self.slot.leased().await;
                    sleep(PAUSE).await;
                }
                Next::WhenAsked => std::future::pending().await,
            }
        };
        tokio::pin!(start);
        loop {
            select! {
                () = ends(&mut closing) => return false,
                order = self.orders.recv() => match order {
                    Some(Order::Take(request)) => self.crew.take_back(request),
                    Some(Order::Start | Order::Renew) => return true,
                    Some(Order::Cancel(_) | Order::Kill(_) | Order::Retire) => {}
                    None => return false,
                },
                () = &mut start => return true,
            }
        }
    }

    /// Starts a process and speaks with it until it has ended.
    async fn live(&mut self) -> Parting {
        let pipes = match self.slot.start(&self.crew.command).await {
            Ok(pipes) => pipes,
            Err(failure) => return parted(Cause::NotStarted, failure),
        };
        let ServicePipes { stdin, stdout, stderr } = pipes;
        let (frames, for_writer) = mpsc::unbounded_channel();
        let writer = tokio::spawn(write(stdin, for_writer));
        let mut talk = Talk {
            crew: Arc::clone(&self.crew),
            place: self.place,
            frames,
            incoming: Frames::default(),
            stdout,
            stderr: Errors::new(stderr),
            jobs: HashMap::new(),
        };
        let stop = self.talk(&mut talk).await;
        talk.silence();
        let parting = match stop {
            Stop::Ended(failure) => {
                let cause = match failure.kind {
                    FailureKind::OutOfMemory => Cause::OutOfMemory,
                    FailureKind::NotStarted | FailureKind::NotFound => Cause::NotStarted,
                    _ => Cause::Exited,
                };
                parted(cause, talk.bury(self.seen_through_shell(failure)).await)
            }
            Stop::Kill(cause, problem) => {
                let failure = self.kill(problem).await;
                parted(cause, talk.bury(failure).await)
            }
            Stop::Disobeyed => {
                self.crew.stopping(self.place);
                let failure = self.kill("a job in it did not stop when it was told to".to_owned()).await;
                talk.bury(failure).await;
                Parting::Renewed
            }
            Stop::InOrder(parting) => {
                self.crew.stopping(self.place);
                talk.send(&ToProcess::Shutdown);
                if timeout(PARTING, self.slot.ended()).await.is_err() {
                    self.slot.kill();
                    self.slot.ended().await;
                }
                parting
            }
        };
        writer.abort();
        parting
    }

    async fn kill(&mut self, problem: String) -> Failure {
        self.slot.kill();
        let ended = self.slot.ended().await;
        Failure { message: format!("subprocess killed: {problem}"), ..ended }
    }

    async fn talk(&mut self, talk: &mut Talk) -> Stop {
        let (types, room) = match timeout(GREETING, self.greet(talk)).await {
            Ok(Ok(greeting)) => greeting,
            Ok(Err(stop)) => return stop,
            Err(_) => return Stop::Kill(Cause::NotStarted, format!("it said no hello within {GREETING:?}")),
        };
        if let Err(problem) = self.crew.greeted(self.place, &types, room) {
            return Stop::Kill(Cause::Misbehaved, problem);
        }
        if let Some(first) = self.first.take() {
            _ = first.send(Greeting::Hello);
        }
        self.serve(talk).await
    }

    /// Says hello, and waits for the answer: the types that it handles and how many tasks it takes at one time.
    async fn greet(&mut self, talk: &mut Talk) -> Result<(BTreeSet<String>, usize), Stop> {
        let (heartbeat_ms, concurrency) = (self.crew.sla.heartbeat().as_millis() as u64, self.crew.concurrency);
        talk.send(&ToProcess::Hello { version: VERSION, heartbeat_ms, max_frame: MAX_FRAME, concurrency });
        let mut closing = self.crew.closing.clone();
        loop {
            let message = talk.incoming.next().map_err(unreadable)?;
            match message {
                Some(FromProcess::Hello { version: VERSION, task_types, concurrency: own }) => {
                    let room = own.unwrap_or(u32::MAX).min(concurrency).max(1);
                    return Ok((task_types.into_iter().collect(), room as usize));
                }
                Some(FromProcess::Hello { version, .. }) => {
                    return Err(Stop::Kill(Cause::Misbehaved, format!("it speaks version {version}, not {VERSION}")));
                }
                Some(FromProcess::Heartbeat { .. }) => {}
                Some(_) => return Err(Stop::Kill(Cause::Misbehaved, "its first frame is not a hello".to_owned())),
                None => select! {
                    read = talk.stdout.read_buf(&mut talk.incoming.buffer) => {
                        if !matches!(read, Ok(1..)) {
                            return Err(self.closed().await);
                        }
                    }
                    () = talk.stderr.read() => talk.tell_lines(false).await,
                    failure = self.slot.ended() => return Err(Stop::Ended(failure)),
                    () = ends(&mut closing) => return Err(Stop::InOrder(Parting::Closing)),
                },
            }
        }
    }

    async fn serve(&mut self, talk: &mut Talk) -> Stop {
        let crew = Arc::clone(&self.crew);
        let mut closing = crew.closing.clone();
        let mut beats = interval(crew.sla.heartbeat());
        let orders = self.crew.orders(self.place);
        // Set when it is to go once it has finished what it holds.
        let mut leaving: Option<Parting> = None;
        loop {
            let spoken = Instant::now();
            match talk.take_frames().await {
                Ok(0) => {}
                Ok(_) => crew.beat(self.place),
                Err(stop) => return stop,
            }
            if talk.jobs.is_empty()
                && let Some(parting) = leaving.take()
            {
                return Stop::InOrder(parting);
            }
            let complaint = async {
                match crew.deadline(self.place) {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let event = select! {
                read = talk.stdout.read_buf(&mut talk.incoming.buffer) => Event::Output(matches!(read, Ok(1..))),
                () = talk.stderr.read() => Event::Errors,
                Some(order) = self.orders.recv() => Event::Order(order),
                _ = beats.tick() => Event::Beat,
                () = complaint => Event::Late,
                failure = self.slot.ended() => Event::Ended(failure),
                () = ends(&mut closing) => Event::Closing,
            };
            match event {
                Event::Output(true) => {}
                // At its end nobody can speak any more.
                Event::Output(false) => return self.closed().await,
                Event::Errors => {
                    talk.tell_lines(false).await;
                    // While others are slow to take what it says, it cannot be heard.
                    if spoken.elapsed() > crew.sla.heartbeat() {
                        crew.beat(self.place);
                    }
                }
                Event::Order(Order::Take(request)) => talk.take(request, &orders).await,
                Event::Order(Order::Cancel(id)) => {
                    if talk.jobs.contains_key(&id) {
                        talk.send(&ToProcess::Cancel { id });
                    }
                }
                Event::Order(Order::Kill(id)) => {
                    if talk.jobs.remove(&id).is_some() {
                        return Stop::Disobeyed;
                    }
                }
                Event::Order(Order::Retire) => leaving = Some(Parting::Retired),
                Event::Order(Order::Renew) => leaving = Some(Parting::Renewed),
                Event::Order(Order::Start) => {}
                Event::Beat => {
                    talk.send(&ToProcess::Heartbeat);
                    crew.retire_idle();
                }
                // It may have said enough while this worker was held up.
                Event::Late if talk.read_now() => {}
                Event::Late => match crew.complaint(self.place) {
                    Some(Complaint::Hangs(problem)) => return Stop::Kill(Cause::Hung, problem),
                    Some(Complaint::NotProducing(problem)) => return Stop::Kill(Cause::NotProducing, problem),
                    None => {}
                },
                Event::Ended(failure) => return Stop::Ended(failure),
                Event::Closing => return Stop::InOrder(Parting::Closing),
            }
        }
    }

    /// It closed its side: it ends now, or is ended.
    async fn closed(&mut self) -> Stop {
        match timeout(PARTING, self.slot.ended()).await {
            Ok(failure) => Stop::Ended(failure),
            Err(_) => Stop::Kill(Cause::Misbehaved, "it closed its standard output".to_owned()),
        }
    }
}

/// Waits until the worker ends.
async fn ends(closing: &mut watch::Receiver<bool>) {
    _ = closing.wait_for(|closing| *closing).await;
}

fn parted(cause: Cause, failure: Failure) -> Parting {
    match failure.kind {
        FailureKind::WorkerLost => Parting::Swept,
        _ => Parting::Failed(cause, failure),
    }
}

fn told(failure: &Failure) -> String {
    match failure.detail.is_empty() {
        true => failure.message.clone(),
        false => format!("{}\n{}", failure.message, failure.detail),
    }
}

fn unreadable(problem: String) -> Stop {
    Stop::Kill(Cause::Misbehaved, format!("it sent {problem}"))
}

/// What happens while a process is spoken with.
enum Event {
    /// False at the end of it.
    Output(bool),
    Errors,
    Order(Order),
    Beat,
    /// It may hang, or not begin what it took.
    Late,
    Ended(Failure),
    Closing,
}

enum Stop {
    /// It has ended.
    Ended(Failure),
    /// It must end, and why.
    Kill(Cause, String),
    /// A job in it did not stop, and cannot be ended alone.
    Disobeyed,
    InOrder(Parting),
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
    /// Nobody has the other side any more: there is always an end to be read, and never anything else.
    over: bool,
}

impl Errors {
    fn new(pipe: pipe::Receiver) -> Self {
        Self { pipe, lines: Lines::default(), tail: Tail::default(), over: false }
    }

    /// Waits until there is something; the bytes are taken by [`Talk::tell_lines`].
    async fn read(&self) {
        if self.over || self.pipe.readable().await.is_err() {
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
        while let Some(size) = by_runtime(&mut buffer).or_else(|| by_kernel(&mut buffer)) {
            if size == 0 {
                self.over = true;
                break;
            }
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
    crew: Arc<Crew>,
    place: Place,
    frames: mpsc::UnboundedSender<Vec<u8>>,
    incoming: Frames,
    stdout: pipe::Receiver,
    stderr: Errors,
    /// What it holds, and whom to tell of it.
    jobs: HashMap<String, Held>,
}

struct Held {
    said: mpsc::Sender<Said>,
    /// It has been heard of.
    shown: bool,
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
            self.jobs.insert(id, Held { said, shown: false });
        } else {
            self.crew.withdrawn(self.place, &id);
        }
    }

    /// Takes in what the kernel has of it, whether or not the runtime has heard of that; false if that is nothing.
    fn read_now(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let read = rustix::io::read(self.stdout.as_fd(), &mut buffer);
        let size = read.unwrap_or(0);
        self.incoming.buffer.extend_from_slice(&buffer[..size]);
        size > 0
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
            FromProcess::Heartbeat { id: Some(id) } | FromProcess::Started { id } => (id, Said::Heartbeat),
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
                _ = job.said.send(said).await;
                self.crew.produced(self.place, &id);
            }
        } else if let Some(job) = self.jobs.get_mut(&id) {
            if !std::mem::replace(&mut job.shown, true) {
                self.crew.shown(self.place, &id);
            }
            _ = job.said.send(said).await;
        }
        Ok(())
    }

    /// Lines that came past the protocol are those of all jobs that run, or the worker's own when none does.
    async fn tell_lines(&mut self, last: bool) {
        for line in self.stderr.take(last) {
            if self.jobs.is_empty() {
                info!(handler = self.crew.name, "{line}");
            }
            for job in self.jobs.values() {
                _ = job.said.send(Said::Log(line.clone(), true)).await;
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
            _ = job.said.send(Said::Ended(Err(TaskError::of(failure.clone())))).await;
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
