//! A configuration file as lines: sections with keys, whose values keep their spelling.

/// Configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// Comment lines at the start of the file, without `# `.
    pub title: Vec<String>,
    sections: Vec<Section>,
}

/// Section, or entry of a list of sections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Heading, such as `[model]` or `[[stage]]`.
    pub heading: String,
    entries: Vec<Entry>,
}

/// Key with its value, as TOML.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Entry {
    key: String,
    value: String,
    /// True for `# key = value`, a suggestion to the user.
    is_suggestion: bool,
}

/// Comments of the sections and keys of a file.
pub trait Comments {
    /// Comment of a section, such as `model`.
    fn of_section(&self, section: &str) -> Option<String>;
    /// Comment of a key of a section. The key may be dotted.
    fn of_key(&self, section: &str, key: &str) -> Option<String>;
}

impl Document {
    /// Reads a file with one key per line, such as the files of the folder configs. The lines of comments before the
    /// first section become the title. Suggestions (`# key = value`) are kept.
    pub fn parse(text: &str) -> Self {
        let mut document = Self { title: Vec::new(), sections: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty() && !line.starts_with("#:schema")) {
            if line.starts_with('[') {
                document.sections.push(Section::new(line));
                continue;
            }
            let comment = line.strip_prefix("# ");
            match (document.sections.last_mut(), comment) {
                (None, comment) => document.title.extend(comment.map(str::to_owned)),
                (Some(section), comment) => {
                    if let Some((key, value)) = comment.unwrap_or(line).split_once(" = ") {
                        section.put(key, value.to_owned(), comment.is_some());
                    }
                }
            }
        }
        document
    }

    /// Sections with this heading, in order.
    pub fn all<'a>(&'a mut self, heading: &'a str) -> impl Iterator<Item = &'a mut Section> {
        self.sections.iter_mut().filter(move |section| section.heading == heading)
    }

    /// First section with this heading. A missing section is added at the end.
    pub fn section(&mut self, heading: &str) -> &mut Section {
        let found = self.sections.iter().position(|section| section.heading == heading);
        let index = found.unwrap_or_else(|| {
            self.sections.push(Section::new(heading));
            self.sections.len() - 1
        });
        &mut self.sections[index]
    }

    /// Replaces all sections with this heading, which come first in the file.
    pub fn replace(&mut self, heading: &str, sections: Vec<Section>) {
        self.sections.retain(|section| section.heading != heading);
        self.sections.splice(0..0, sections);
    }

    /// Renders the file with a comment above each section and key. `schema` is the path of the JSON schema.
    pub fn render(&self, schema: &str, comments: &impl Comments) -> String {
        let mut text = format!("#:schema ./{schema}\n");
        text.extend(self.title.iter().map(|line| format!("# {line}\n")));
        for Section { heading, entries } in &self.sections {
            let name = heading.trim_matches(['[', ']']);
            text += &format!("\n{}{heading}\n", line(comments.of_section(name)));
            for Entry { key, value, is_suggestion } in entries {
                let mark = if *is_suggestion { "# " } else { "" };
                text += &format!("{}{mark}{key} = {value}\n", line(comments.of_key(name, key)));
            }
        }
        text
    }
}

fn line(comment: Option<String>) -> String {
    comment.map_or(String::new(), |comment| format!("# {comment}\n"))
}

impl Section {
    /// Creates a section without keys.
    pub fn new(heading: &str) -> Self {
        Self { heading: heading.to_owned(), entries: Vec::new() }
    }

    /// Value of a key, as TOML.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.entries.iter().find(|entry| entry.key == key && !entry.is_suggestion).map(|entry| entry.value.as_str())
    }

    /// Sets a key to a value.
    pub fn set(&mut self, key: &str, value: impl Into<toml::Value>) -> &mut Self {
        self.put(key, value.into().to_string(), false);
        self
    }

    /// Adds a key as a comment for the user to complete.
    pub fn suggest(&mut self, key: &str, value: impl Into<toml::Value>) -> &mut Self {
        self.put(key, value.into().to_string(), true);
        self
    }

    /// Removes a key or a suggestion.
    pub fn remove(&mut self, key: &str) -> &mut Self {
        self.entries.retain(|entry| entry.key != key);
        self
    }

    /// Replaces the entry of a key, or adds it at the end.
    fn put(&mut self, key: &str, value: String, is_suggestion: bool) {
        let entry = Entry { key: key.to_owned(), value, is_suggestion };
        match self.entries.iter_mut().find(|entry| entry.key == key) {
            Some(found) => *found = entry,
            None => self.entries.push(entry),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Names;

    impl Comments for Names {
        fn of_section(&self, section: &str) -> Option<String> {
            Some(format!("about {section}"))
        }

        fn of_key(&self, section: &str, key: &str) -> Option<String> {
            (key != "plain").then(|| format!("about {section}.{key}"))
        }
    }

    const FILE: &str = "#:schema ./x.json\n# Title.\n\n[a]\nb = 1e-3\n# c = \"x\"    # why\n\n[[s]]\nplain = 2_000\n";

    #[test]
    fn values_keep_their_spelling_and_get_comments() {
        let mut document = Document::parse(FILE);
        document.section("[a]").set("d.e", "a \"b\"");
        document.section("[new]").set("n", 3);
        let text = document.render("run.schema.json", &Names);
        let expected = "#:schema ./run.schema.json\n# Title.\n\n# about a\n[a]\n# about a.b\nb = 1e-3\n# about a.c\n\
                        # c = \"x\"    # why\n# about a.d.e\nd.e = 'a \"b\"'\n\n# about s\n[[s]]\nplain = 2_000\n\n\
                        # about new\n[new]\n# about new.n\nn = 3\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn keys_are_replaced_and_removed() {
        let mut document = Document::parse(FILE);
        let section = document.section("[a]");
        section.set("b", 2).set("c", true).remove("none");
        assert_eq!((section.get("b"), section.get("c")), (Some("2"), Some("true")));
        section.remove("b").suggest("f", 1);
        assert_eq!((section.get("b"), section.get("f")), (None, None));
        document.replace("[[s]]", vec![Section::new("[[s]]"), Section::new("[[s]]")]);
        assert_eq!(document.all("[[s]]").count(), 2);
        assert_eq!(document.sections[0].heading, "[[s]]");
    }
}
