//! Parser for the output of Open MPI's mpirun: lines of ranks, the first death, and other messages.

use super::OutputParser;
use crate::decide::{RankDeath, WorkerEvent};

/// Separates the lines of ranks from the lines of mpirun itself, and joins the lines of mpirun into paragraphs.
#[derive(Debug, Default)]
pub struct OpenMpiParser {
    /// Rank and tag of the last line. `None` if mpirun itself printed it.
    tag: Option<(usize, String)>,
    block: Option<Vec<String>>,
}

impl OutputParser for OpenMpiParser {
    fn line(&mut self, text: &str) -> Vec<WorkerEvent> {
        let tagged = tagged(text);
        self.tag = tagged.as_ref().map(|(rank, tag, _)| (*rank, (*tag).to_owned()));
        match tagged {
            Some((rank, tag, output)) => vec![WorkerEvent::Line(rank, output.replace(tag, ""))],
            None => self.own(text).into_iter().collect(),
        }
    }

    fn continuation(&mut self, text: &str) -> Vec<WorkerEvent> {
        // Nothing is expected of mpirun itself in a line of this length.
        let tag = self.tag.as_ref();
        tag.map(|(rank, tag)| WorkerEvent::Line(*rank, text.replace(tag, ""))).into_iter().collect()
    }

    fn end(&mut self) -> Vec<WorkerEvent> {
        self.close().into_iter().collect()
    }
}

/// Parses a line of a rank: the rank, its tag and the text. `--tag-output` formats the line as `[job,rank]<stream>:text`.
/// Open MPI 5 adds a space. If a rank writes a line in several pieces, each piece has a tag.
fn tagged(text: &str) -> Option<(usize, &str, &str)> {
    let (_job, rest) = text.strip_prefix('[')?.split_once(',')?;
    let (rank, rest) = rest.split_once("]<")?;
    let (stream, output) = rest.split_once(">:")?;
    if !["stdout", "stderr", "stddiag"].contains(&stream) {
        return None;
    }
    let tag = &text[..text.len() - output.len()];
    Some((rank.parse().ok()?, tag, output.strip_prefix(' ').unwrap_or(output)))
}

impl OpenMpiParser {
    /// Handles a line of mpirun itself. A line of dashes opens and closes a paragraph.
    fn own(&mut self, text: &str) -> Option<WorkerEvent> {
        let rule = text.len() >= 20 && text.bytes().all(|byte| byte == b'-');
        match (rule, self.block.as_mut()) {
            (true, None) => self.block = Some(Vec::new()),
            (true, Some(_)) => return self.close(),
            (false, Some(block)) => block.push(text.trim().to_owned()),
            (false, None) => return paragraph(text.trim().to_owned()),
        }
        None
    }

    /// Ends the open paragraph.
    fn close(&mut self) -> Option<WorkerEvent> {
        let block = self.block.take()?;
        let words: Vec<&str> = block.iter().flat_map(|line| line.split_whitespace()).collect();
        paragraph(words.join(" "))
    }
}

fn paragraph(text: String) -> Option<WorkerEvent> {
    match death(&text) {
        Some(death) => Some(WorkerEvent::Died(death)),
        None if text.is_empty() || is_banner(&text) => None,
        None => Some(WorkerEvent::Remark(text)),
    }
}

/// Parses the report of the death of a rank. In Open MPI 5, the report names `prterun` instead of `mpirun`.
fn death(text: &str) -> Option<RankDeath> {
    let own = |rest: &'static str| ["mpirun", "prterun"].map(|name| format!("{name} {rest}"));
    let noticed = own("noticed that process rank ");
    if let Some(rest) = noticed.iter().find_map(|start| text.strip_prefix(start.as_str())) {
        let rank = number(rest)?;
        let signal = number(rest.split_once("exited on signal ")?.1)?;
        return Some(RankDeath::Signal { rank: usize::try_from(rank).ok()?, signal: i32::try_from(signal).ok()? });
    }
    // Open MPI 4 prints `Process name: [[54471,1],1] Exit code: 3`. The process name in Open MPI 5 is
    // `[prterun-vm-14062@1,1]`.
    let rest = text.split_once("Process name: [")?.1;
    let (name, rest) = rest.split_once(" Exit code:")?;
    let rank = number(name.rsplit_once(',')?.1)?;
    let code = number(rest)?;
    Some(RankDeath::Exit { rank: usize::try_from(rank).ok()?, code: i32::try_from(code).ok()? })
}

/// Parses the number at the start of `text`.
fn number(text: &str) -> Option<u64> {
    let text = text.trim_start();
    text[..text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len())].parse().ok()
}

/// True if a paragraph only announces another message.
fn is_banner(text: &str) -> bool {
    const BANNERS: [&str; 5] = [
        "Primary job terminated normally, but ",
        "mpirun has exited due to process rank ",
        "prterun has exited due to process rank ",
        "MPI_ABORT was invoked on rank ",
        "Per user-direction, the job has been aborted",
    ];
    BANNERS.iter().any(|banner| text.starts_with(banner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_attributed_to_ranks() {
        let line = |text: &str| OpenMpiParser::default().line(text);
        assert_eq!(line("[1,0]<stderr>:a: b"), [WorkerEvent::Line(0, "a: b".into())]);
        assert_eq!(line("[1,0]<stderr>:a[1,0]<stderr>:: b"), [WorkerEvent::Line(0, "a: b".into())]);
        assert_eq!(line("[1,12]<stdout>:"), [WorkerEvent::Line(12, String::new())]);
        assert_eq!(line("[1,1]<stdout>: out 1"), [WorkerEvent::Line(1, "out 1".into())]);
        assert_eq!(line("[vm:123] something"), [WorkerEvent::Remark("[vm:123] something".into())]);
        assert_eq!(line("[1,0] text"), [WorkerEvent::Remark("[1,0] text".into())]);
        let mut parser = OpenMpiParser::default();
        parser.line("[1,3]<stdout>:aaa");
        assert_eq!(parser.continuation("b[1,3]<stdout>:c"), [WorkerEvent::Line(3, "bc".into())]);
        parser.line("mpirun aaa");
        assert_eq!(parser.continuation("b"), []);
    }

    fn reported(text: &str) -> Vec<WorkerEvent> {
        let mut parser = OpenMpiParser::default();
        let mut reported: Vec<_> = text.lines().flat_map(|line| parser.line(line)).collect();
        reported.extend(parser.end());
        reported
    }

    const RULE: &str = "--------------------------------------------------------------------------";

    // The following texts are unchanged output of Open MPI 4.1.4 and 5.0.11.

    #[test]
    fn exits_by_signal_are_parsed() {
        let four = format!(
            "{RULE}\nPrimary job  terminated normally, but 1 process returned\na non-zero exit code. Per user-direction, \
             the job has been aborted.\n{RULE}\n{RULE}\nmpirun noticed that process rank 1 with PID 0 on node vm exited \
             on signal 9 (Killed).\n{RULE}\n"
        );
        let five = format!(
            "{RULE}\nprterun noticed that process rank 1 with PID 14042 on node vm exited on\nsignal 9 (Killed).\n{RULE}"
        );
        for text in [four, five] {
            assert_eq!(reported(&text), [WorkerEvent::Died(RankDeath::Signal { rank: 1, signal: 9 })], "{text}");
        }
    }

    #[test]
    fn exits_with_a_code_are_parsed() {
        let four = format!(
            "{RULE}\nmpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be \
             terminated. The first process to do so was:\n\n  Process name: [[54471,1],1]\n  Exit code:    3\n{RULE}"
        );
        let five = format!(
            "{RULE}\nprterun detected that one or more processes exited with non-zero status,\nthus causing the job to be \
             terminated. The first process to do so was:\n\n   Process name: [prterun-vm-14062@1,1]\n   Exit code:    3\n\
             {RULE}"
        );
        for text in [four, five] {
            assert_eq!(reported(&text), [WorkerEvent::Died(RankDeath::Exit { rank: 1, code: 3 })], "{text}");
        }
    }

    #[test]
    fn other_lines_are_kept_unchanged() {
        let text = format!(
            "{RULE}\nmpirun was unable to launch the specified application as it could not access\nor execute an \
             executable:\n\nExecutable: /tmp/nope\nNode: vm\n\nwhile attempting to start process rank 0.\n{RULE}\n\
             2 total processes failed to start\n"
        );
        let reported = reported(&text);
        let [WorkerEvent::Remark(first), WorkerEvent::Remark(_)] = &reported[..] else { panic!("{reported:?}") };
        assert!(first.ends_with("Executable: /tmp/nope Node: vm while attempting to start process rank 0."));
    }
}
