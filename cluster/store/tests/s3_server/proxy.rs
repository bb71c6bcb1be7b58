//! TCP proxy that forwards one HTTP request per connection and injects faults.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{Fault, Layer};

/// Accepts connections on `listener` and forwards them to `server`.
pub async fn serve(listener: TcpListener, server: SocketAddr, layer: Arc<Layer>) {
    while let Ok((client, _)) = listener.accept().await {
        let layer = layer.clone();
        tokio::spawn(async move {
            // If a client disconnects, only its own connection ends.
            let _ = forward(client, server, &layer).await;
        });
    }
}

/// Head of a request or response, and the part of the body that was read together with the head.
struct Message {
    lines: Vec<String>,
    body: Vec<u8>,
}

impl Message {
    /// Reads to the end of the head or further.
    async fn read(from: &mut TcpStream) -> Result<Self> {
        let mut bytes = Vec::new();
        loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                let body = bytes.split_off(end + 4);
                let lines = String::from_utf8_lossy(&bytes[..end]).split("\r\n").map(String::from).collect();
                return Ok(Self { lines, body });
            }
            if from.read_buf(&mut bytes).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    fn header(&self, name: &str) -> Option<&str> {
        let value = |line: &'_ String| line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name));
        let line = self.lines[1..].iter().find(|line| value(line))?;
        line.split_once(':').map(|(_, value)| value.trim())
    }

    fn length(&self) -> usize {
        self.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0)
    }

    fn set(&mut self, name: &str, value: &str) {
        self.lines.retain(|line| !line.split_once(':').is_some_and(|(key, _)| key.eq_ignore_ascii_case(name)));
        self.lines.push(format!("{name}: {value}"));
    }

    fn head(&self) -> Vec<u8> {
        (self.lines.join("\r\n") + "\r\n\r\n").into_bytes()
    }

    /// Reads the rest of the body, whose length is in the Content-Length header.
    async fn fill(&mut self, from: &mut TcpStream) -> Result<()> {
        while self.body.len() < self.length() {
            if from.read_buf(&mut self.body).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(())
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr, layer: &Layer) -> Result<()> {
    let mut request = Message::read(&mut client).await?;
    let line = request.lines[0].clone();
    let mut words = line.split(' ');
    let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
    if let Some(hook) = layer.hook(method, target) {
        tokio::task::spawn_blocking(hook).await.map_err(Error::other)?;
    }
    let fault = layer.fault(method, target);
    match fault {
        // Read the whole body first. Otherwise a client that is still sending sees a reset instead of the response.
        Some(Fault::Refuse(status, code)) => {
            request.fill(&mut client).await?;
            return client.write_all(&refusal(status, code)).await;
        }
        Some(Fault::Answer(body)) => {
            request.fill(&mut client).await?;
            return client.write_all(&response("200 OK", body)).await;
        }
        Some(Fault::Reset) if request.length() == 0 => return client.set_zero_linger(),
        Some(Fault::Reset) => {
            let server = TcpStream::connect(server).await?;
            return reset_inside(client, request, server).await;
        }
        Some(Fault::Stall(duration)) => {
            tokio::time::sleep(duration).await;
            return client.set_zero_linger();
        }
        _ => {}
    }
    request.set("connection", "close");
    let mut server = TcpStream::connect(server).await?;
    server.write_all(&request.head()).await?;
    let missing = request.length().saturating_sub(request.body.len());
    server.write_all(&request.body).await?;
    let mut rest = (&mut client).take(missing as u64);
    match layer.upload_rate.load(Ordering::SeqCst) {
        0 => drop(tokio::io::copy(&mut rest, &mut server).await?),
        rate => share_uplink(&mut rest, &mut server, rate, &layer.uplink).await?,
    }
    match (fault, layer.rate.load(Ordering::SeqCst)) {
        (None, 0) => tokio::io::copy(&mut server, &mut client).await.map(drop),
        (None, rate) => copy_slowly(&mut server, &mut client, rate).await,
        (Some(fault), _) => corrupt_response(client, server, method == "HEAD", fault).await,
    }
}

/// Copies with at most `rate` bytes per second.
async fn copy_slowly(from: &mut TcpStream, to: &mut TcpStream, rate: u64) -> Result<()> {
    let mut piece = vec![0; (rate / 20).max(1) as usize];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        to.write_all(&piece[..count]).await?;
        tokio::time::sleep(Duration::from_secs_f64(count as f64 / rate as f64)).await;
    }
}

/// Copies over a link that all connections share. It transfers `rate` bytes per second.
async fn share_uplink(
    from: &mut (impl AsyncReadExt + Unpin),
    to: &mut TcpStream,
    rate: u64,
    uplink: &tokio::sync::Mutex<()>,
) -> Result<()> {
    let mut piece = vec![0; 64 << 10];
    loop {
        let count = from.read(&mut piece).await?;
        if count == 0 {
            return Ok(());
        }
        let turn = uplink.lock().await;
        tokio::time::sleep(Duration::from_secs_f64(count as f64 / rate as f64)).await;
        drop(turn);
        to.write_all(&piece[..count]).await?;
    }
}

/// Sends half of the request to the server, then resets both connections.
async fn reset_inside(mut client: TcpStream, mut request: Message, mut server: TcpStream) -> Result<()> {
    let half = request.length() / 2;
    while request.body.len() < half {
        if client.read_buf(&mut request.body).await? == 0 {
            break;
        }
    }
    server.write_all(&request.head()).await?;
    server.write_all(&request.body[..half.min(request.body.len())]).await?;
    client.set_zero_linger()?;
    server.set_zero_linger()
}

/// Reads the whole response of the server. Sends the client only a part of it, other bytes, or nothing.
async fn corrupt_response(mut client: TcpStream, mut server: TcpStream, bodiless: bool, fault: Fault) -> Result<()> {
    let mut answer = Message::read(&mut server).await?;
    server.read_to_end(&mut answer.body).await?;
    let half = answer.body.len() / 2;
    match fault {
        Fault::LoseAnswer => return client.set_zero_linger(),
        Fault::CutBody => {
            // If a response has no body, its head is truncated. Otherwise the response would be complete.
            let mut head = answer.head();
            head.truncate(if half == 0 { head.len() / 2 } else { head.len() });
            client.write_all(&head).await?;
            client.write_all(&answer.body[..half]).await?;
            // Wait until the client has read the first half, because a reset discards unread data.
            tokio::time::sleep(Duration::from_millis(20)).await;
            return client.set_zero_linger();
        }
        Fault::ShortBody if !bodiless => {
            answer.set("content-length", &half.to_string());
            answer.body.truncate(half);
        }
        Fault::WrongBody => answer.body.iter_mut().for_each(|byte| *byte ^= 0x55),
        _ => {}
    }
    client.write_all(&answer.head()).await?;
    client.write_all(&answer.body).await
}

fn refusal(status: u16, code: &str) -> Vec<u8> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as the test asked</Message></Error>");
    response(&format!("{status} Refused"), &body)
}

fn response(status: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}").into_bytes()
}

/// Error of a request that cannot be forwarded.
pub fn closed() -> Error {
    Error::new(ErrorKind::ConnectionReset, "the connection was closed")
}
