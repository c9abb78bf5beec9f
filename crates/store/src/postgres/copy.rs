//! Many new rows, as `COPY … FROM STDIN (FORMAT binary)` reads them. Each costs PostgreSQL less than an insert.

use crate::StoreError;
use futures::SinkExt;
use std::{io::Cursor, pin::pin};
use tokio_postgres::{Client, Statement};

const HEADER: &[u8] = b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0";
const TRAILER: [u8; 2] = (-1_i16).to_be_bytes();
const NULL: [u8; 4] = (-1_i32).to_be_bytes();
/// About as much as one message carries.
const MESSAGE: usize = 1 << 20;

pub struct CopyRows {
    full: Vec<Vec<u8>>,
    bytes: Vec<u8>,
}

impl CopyRows {
    pub fn new() -> Self {
        Self { full: Vec::new(), bytes: HEADER.to_vec() }
    }

    /// Begins a row; each of its fields follows.
    pub fn row(&mut self, fields: u8) {
        if self.bytes.len() >= MESSAGE {
            self.full.push(std::mem::replace(&mut self.bytes, Vec::with_capacity(MESSAGE)));
        }
        self.bytes.extend(i16::from(fields).to_be_bytes());
    }

    pub fn field(&mut self, value: &[u8]) -> Result<(), StoreError> {
        let length = i32::try_from(value.len());
        let length = length.map_err(|_| StoreError::Broken("a value of more than two gigabytes".into()))?;
        self.bytes.extend(length.to_be_bytes());
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    pub fn null(&mut self) {
        self.bytes.extend(NULL);
    }

    /// Sends them, and returns how many there are now.
    pub async fn send(mut self, client: &Client, statement: &Statement) -> Result<u64, tokio_postgres::Error> {
        self.bytes.extend(TRAILER);
        let mut sink = pin!(client.copy_in(statement).await?);
        for message in self.full.into_iter().chain([self.bytes]) {
            sink.send(Cursor::new(message)).await?;
        }
        sink.finish().await
    }
}
