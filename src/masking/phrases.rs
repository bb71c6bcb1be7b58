//! Phrases that are masked as a whole.

use std::collections::HashMap;

/// Phrases as sequences of token IDs, in a prefix tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrases {
    /// Child of a node by token ID. Node 0 is the root.
    children: HashMap<(u32, u32), u32>,
    /// For each node, true if a phrase ends there.
    ends: Vec<bool>,
}

impl Default for Phrases {
    fn default() -> Self {
        Self { children: HashMap::new(), ends: vec![false] }
    }
}

impl Phrases {
    /// Adds a phrase, unless it is empty.
    pub fn insert(&mut self, phrase: &[u32]) {
        let mut node = 0;
        for id in phrase {
            let next = self.ends.len() as u32;
            node = *self.children.entry((node, *id)).or_insert(next);
            if node == next {
                self.ends.push(false);
            }
        }
        self.ends[node as usize] = !phrase.is_empty();
    }

    /// Returns the lengths, in tokens, of the phrases that `ids` starts with, in rising order.
    pub fn lengths<'a>(&'a self, ids: &'a [u32]) -> impl Iterator<Item = usize> + 'a {
        let mut node = 0;
        let nodes = ids.iter().map_while(move |id| {
            node = *self.children.get(&(node, *id))?;
            Some(node)
        });
        nodes.enumerate().filter(|(_, node)| self.ends[*node as usize]).map(|(index, _)| index + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_phrases_at_a_position_are_found() {
        let list: [&[u32]; 5] = [&[5, 6], &[5, 6, 7, 8], &[9], &[], &[5, 7]];
        let mut phrases = Phrases::default();
        list.iter().for_each(|phrase| phrases.insert(phrase));
        let lengths = |ids: &[u32]| phrases.lengths(ids).collect::<Vec<_>>();
        assert_eq!(lengths(&[5, 6, 7, 8, 9]), [2, 4]);
        assert_eq!(lengths(&[5, 6, 7]), [2]);
        assert_eq!(lengths(&[5, 7, 9]), [2]);
        assert_eq!(lengths(&[9, 9]), [1]);
        assert_eq!(lengths(&[6, 7]), [0_usize; 0]);
        assert_eq!(lengths(&[]), [0_usize; 0]);
        assert_eq!(Phrases::default().lengths(&[5]).count(), 0);
    }
}
