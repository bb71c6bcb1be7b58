//! Event files: TFRecord framing and file names.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

use prost::Message;

use super::proto::Event;

/// Constant that is added to the rotated checksum.
const MASK: u32 = 0xa282_ead8;
/// Start of the names. TensorBoard reads all files with `tfevents` in their names, in the order of the names.
const PREFIX: &str = "events.out.tfevents.";
/// End of the names of lambert's files.
const SUFFIX: &str = ".lambert";

/// Returns the masked CRC-32C. Without the mask, the CRC of data that contain their own CRC would be unreliable.
fn checksum(data: &[u8]) -> [u8; 4] {
    crc32c::crc32c(data).rotate_right(15).wrapping_add(MASK).to_le_bytes()
}

/// Frames an event as a TFRecord: length, checksum of the length, event, checksum of the event.
pub fn record(event: &Event) -> Vec<u8> {
    let data = event.encode_to_vec();
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &checksum(&length), &data, &checksum(&data)].concat()
}

/// An event file under construction.
#[derive(Debug)]
pub struct EventFile(File);

impl EventFile {
    /// Deletes earlier event files of lambert from `folder`, and creates a new event file there. The name of the new
    /// file contains `now` (seconds since the Unix epoch).
    ///
    /// # Errors
    /// The folder or the file cannot be written.
    pub fn create(folder: &Path, now: f64) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let is_ours = |name: &str| name.starts_with(PREFIX) && name.ends_with(SUFFIX);
            if entry.file_name().to_str().is_some_and(is_ours) {
                std::fs::remove_file(entry.path())?;
            }
        }
        let name = format!("{PREFIX}{:010}.{}{SUFFIX}", now as u64, std::process::id());
        Ok(Self(File::create(folder.join(name))?))
    }

    /// Appends events.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn append(&mut self, events: &[Event]) -> io::Result<()> {
        let bytes: Vec<u8> = events.iter().flat_map(record).collect();
        self.0.write_all(&bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::super::proto::{START, SessionLog, Summary, Value};
    use super::super::text;
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    // The expected bytes are those of tensorboard 2.21's writer:
    //
    //     from tensorboard.summary.writer.record_writer import RecordWriter
    //     from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, types_pb2
    //     out = io.BytesIO(); RecordWriter(out).write(event.SerializeToString()); out.getvalue().hex()

    #[test]
    fn the_file_version_equals_tensorboards() {
        let event = Event { wall_time: 1.5, file_version: Some("brain.Event:2".into()), ..Event::default() };
        assert_eq!(
            hex(&record(&event)),
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c"
        );
    }

    #[test]
    fn a_start_equals_tensorboards() {
        let session_log = Some(SessionLog { status: START });
        let event = Event { wall_time: 2.25, step: 301, session_log, ..Event::default() };
        assert_eq!(hex(&record(&event)), "100000000000000095fbfe1809000000000000024010ad023a020801518d2ae0");
    }

    #[test]
    fn scalars_equal_tensorboards() {
        let value = |tag: &str, value: f32| Value { tag: tag.into(), simple_value: Some(value), ..Value::default() };
        let summary = Some(Summary { value: vec![value("loss/total", 7.25), value("zero", 0.0)] });
        let event = Event { wall_time: 1e9, step: 7, summary, ..Event::default() };
        assert_eq!(
            hex(&record(&event)),
            "2d000000000000003c418afb090000000065cdcd4110072a200a110a0a6c6f73732f746f74616c150000e8400a0b0a047a65726f15000000000927c33e"
        );
    }

    #[test]
    fn texts_equal_tensorboards() {
        let event = text::event(3.0, "note", "caf\u{e9}");
        assert_eq!(
            hex(&record(&event)),
            "2a00000000000000ae8d91f50900000000000008402a1f0a1d0a046e6f7465420b080712004205636166c3a94a080a060a0474657874babec975"
        );
    }

    #[test]
    fn a_new_file_replaces_lamberts_earlier_ones() {
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("events.out.tfevents.1.host");
        std::fs::write(&other, "").unwrap();
        drop(EventFile::create(folder.path(), 5.0).unwrap());
        let mut file = EventFile::create(folder.path(), 7.9).unwrap();
        file.append(&[Event::default(), Event::default()]).unwrap();
        let mut names: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        names.sort();
        let own = folder.path().join(format!("events.out.tfevents.0000000007.{}.lambert", std::process::id()));
        assert_eq!(names, [own.clone(), other]);
        assert_eq!(std::fs::read(own).unwrap(), [record(&Event::default()), record(&Event::default())].concat());
    }
}
