//! Lines as they are measured, for people.

use crate::record::{Figure, Value};
use std::io::{IsTerminal, Write};

pub fn heading(text: &str) {
    println!("\n{text}");
}

pub fn figure(figure: &Figure) {
    let values: Vec<String> = figure.values.iter().map(|v| format!("{} {}", v.name, with_unit(v))).collect();
    clear();
    println!("  {:<26} {:<11} {}", figure.system, figure.durability.text(), values.join("  "));
}

pub fn gap(system: &str, why: &str) {
    clear();
    println!("  {system:<26} not measured: {why}");
}

/// What is being measured now; gone when its figure is there.
pub fn progress(text: &str) {
    let mut out = std::io::stdout();
    if out.is_terminal() {
        _ = write!(out, "\r\x1b[K  … {text}");
        _ = out.flush();
    }
}

fn clear() {
    if std::io::stdout().is_terminal() {
        print!("\r\x1b[K");
    }
}

pub fn with_unit(value: &Value) -> String {
    format!("{} {}", number(value.median()), value.unit)
}

/// Three digits that count, and commas between thousands.
pub fn number(value: f64) -> String {
    if value.abs() < 100.0 && value != value.trunc() {
        let digits = if value.abs() < 1.0 { 2 } else { 1 };
        return format!("{value:.digits$}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 && !text.ends_with('-') {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::number;

    #[test]
    fn numbers_read_well() {
        assert_eq!([0.123, 12.34, 123.4, 1234.0, 1234567.0].map(number), ["0.12", "12.3", "123", "1,234", "1,234,567"]);
    }
}
