//! The arguments of a template.

/// Names under which wikis take the text that a template frames.
const TEXT: [&str; 9] = ["text", "texte", "quote", "quotation", "content", "texto", "testo", "treść", "zitat"];

/// See the module.
pub struct Arguments<'a> {
    positional: Vec<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> Arguments<'a> {
    /// Those in `text`, which stands behind the template's name.
    pub fn new(text: &'a str) -> Self {
        let mut arguments = Self { positional: Vec::new(), named: Vec::new() };
        for argument in divide(text) {
            match argument.split_once('=').filter(|(name, _)| !name.contains(['[', '{', '<'])) {
                Some((name, value)) => arguments.name(name.trim(), value.trim()),
                None => arguments.positional.push(argument.trim()),
            }
        }
        arguments
    }

    /// `2=text` is the second argument, wherever it stands.
    fn name(&mut self, name: &'a str, value: &'a str) {
        match name.parse::<usize>() {
            Ok(number @ 1..=9) => {
                self.positional.resize(self.positional.len().max(number), "");
                self.positional[number - 1] = value;
            }
            _ => self.named.push((name, value)),
        }
    }

    /// How many have no name.
    pub fn len(&self) -> usize {
        self.positional.len()
    }

    /// The argument with this number, from 0; empty if there is none.
    pub fn get(&self, number: usize) -> &'a str {
        self.positional.get(number).copied().unwrap_or("")
    }

    /// Those without a name.
    pub fn all(&self) -> &[&'a str] {
        &self.positional
    }

    /// What was given under this name.
    pub fn named(&self, name: &str) -> Option<&'a str> {
        self.named.iter().find(|(known, value)| *known == name && !value.is_empty()).map(|(_, value)| *value)
    }

    /// The text that the template frames: the argument that is called so, or the first.
    pub fn text(&self) -> &'a str {
        let called = |name: &&str| TEXT.contains(&name.to_lowercase().as_str());
        let named = self.named.iter().find(|(name, value)| called(name) && !value.is_empty());
        named.map_or_else(|| self.get(0), |(_, value)| value)
    }
}

/// Divides at the bars that stand in no link or template.
fn divide(text: &str) -> Vec<&str> {
    let (mut depth, mut start) = (0_i32, 0);
    let mut found = Vec::new();
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth -= 1,
            b'|' if depth == 0 => {
                found.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&text[start..]);
    found
}
