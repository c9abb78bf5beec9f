//! Lines of the audit log about calls that the brain has answered.

use hodei_core::{
    access::AuditEntry,
    brain::{Answer, Refusal},
};

/// Adds what became of a call to the lines of the commit that holds its outcome.
pub fn answered(lines: &mut Vec<AuditEntry>, line: AuditEntry, answer: &Result<Answer, Refusal>) {
    let outcome = match answer {
        Ok(Answer::Existed(places)) if !places.is_empty() => {
            let existed: Vec<String> = places.iter().map(|(_, id)| id.to_string()).collect();
            format!("ok, {} existed already", existed.join(" "))
        }
        Ok(_) => "ok".to_owned(),
        // Whoever guesses must not be able to fill the log; the door counts these.
        Err(Refusal::Token(_)) => return,
        Err(refusal) => format!("refused: {refusal}"),
    };
    add_line(lines, AuditEntry { outcome, ..line });
}

/// Calls of one actor that did the same and share a commit share a line, too, which names all that they did it to: under load
/// a line for each would cost as much as the work itself.
fn add_line(lines: &mut Vec<AuditEntry>, line: AuditEntry) {
    const LONGEST: usize = 4096;
    let alike = |last: &&mut AuditEntry| {
        (&last.actor, &last.peer, &last.action, &last.outcome) == (&line.actor, &line.peer, &line.action, &line.outcome)
            && last.subject.len() + line.subject.len() < LONGEST
    };
    match lines.last_mut().filter(alike) {
        Some(last) => {
            last.subject.push(' ');
            last.subject.push_str(&line.subject);
        }
        None => lines.push(line),
    }
}
