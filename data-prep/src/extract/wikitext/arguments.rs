//! Template arguments.

/// Names, in various wikis, of the parameter that contains the text to display.
const TEXT_PARAMETERS: [&str; 9] =
    ["text", "texte", "quote", "quotation", "content", "texto", "testo", "treść", "zitat"];

/// The arguments of a template call.
pub struct TemplateArguments<'a> {
    positional: Vec<&'a str>,
    named: Vec<(&'a str, &'a str)>,
}

impl<'a> TemplateArguments<'a> {
    /// Parses the part of a template call that follows the template name.
    pub fn parse(text: &'a str) -> Self {
        let mut arguments = Self { positional: Vec::new(), named: Vec::new() };
        for argument in split_at_bars(text) {
            match argument.split_once('=').filter(|(name, _)| !name.contains(['[', '{', '<'])) {
                Some((name, value)) => arguments.add_named(name.trim(), value.trim()),
                None => arguments.positional.push(argument.trim()),
            }
        }
        arguments
    }

    /// Adds a named argument. `2=text` sets the second positional argument.
    fn add_named(&mut self, name: &'a str, value: &'a str) {
        match name.parse::<usize>() {
            Ok(number @ 1..=9) => {
                self.positional.resize(self.positional.len().max(number), "");
                self.positional[number - 1] = value;
            }
            _ => self.named.push((name, value)),
        }
    }

    /// Number of positional arguments.
    pub fn len(&self) -> usize {
        self.positional.len()
    }

    /// Returns the positional argument at index `number` (from 0), or an empty string if it is missing.
    pub fn get(&self, number: usize) -> &'a str {
        self.positional.get(number).copied().unwrap_or("")
    }

    /// Positional arguments.
    pub fn positional(&self) -> &[&'a str] {
        &self.positional
    }

    /// Returns a named argument, if present and not empty.
    pub fn named(&self, name: &str) -> Option<&'a str> {
        self.named.iter().find(|(known, value)| *known == name && !value.is_empty()).map(|(_, value)| *value)
    }

    /// Returns the text to display: the value of a parameter in `TEXT_PARAMETERS`, otherwise the first positional
    /// argument.
    pub fn text(&self) -> &'a str {
        let called = |name: &&str| TEXT_PARAMETERS.contains(&name.to_lowercase().as_str());
        let named = self.named.iter().find(|(name, value)| called(name) && !value.is_empty());
        named.map_or_else(|| self.get(0), |(_, value)| value)
    }
}

/// Splits `text` at the bars outside links and templates.
fn split_at_bars(text: &str) -> Vec<&str> {
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
