//! Trie over the bytes of tokens, as a double array: the child of a node for a byte is at `base ^ byte`.

/// Position that no node has, and id that no token has.
const NONE: u32 = u32::MAX;
/// Number of units in a block: the children of a node are in one block.
const BLOCK: usize = 256;
/// Number of blocks that are searched for a place of children. More blocks save little memory.
const SEARCHED_BLOCKS: usize = 16;

/// Trie that maps byte strings to ids.
#[derive(Debug)]
pub struct ByteTrie {
    units: Vec<Unit>,
}

#[derive(Debug, Clone, Copy)]
struct Unit {
    /// Position of the children, if there are any, combined with their bytes.
    base: u32,
    parent: u32,
    id: u32,
}

const FREE: Unit = Unit { base: 0, parent: NONE, id: NONE };

/// Node of a trie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Node(u32);

impl ByteTrie {
    /// Root of each trie.
    pub const ROOT: Node = Node(0);

    /// Creates the trie of distinct texts, whose ids are their positions.
    pub fn new<'a>(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut tokens: Vec<(&[u8], u32)> = texts.map(str::as_bytes).zip(0..).collect();
        tokens.sort_unstable();
        let mut builder = Builder::default();
        builder.add_block();
        builder.take(0, NONE);
        // Nodes with their depths and tokens.
        let mut open = vec![(0, 0, &tokens[..])];
        let mut labels = Vec::new();
        while let Some((node, depth, mut tokens)) = open.pop() {
            if let Some(((text, id), rest)) = tokens.split_first()
                && text.len() == depth
            {
                builder.units[node].id = *id;
                tokens = rest;
            }
            let groups = tokens.chunk_by(|(one, _), (other, _)| one[depth] == other[depth]);
            labels.clear();
            labels.extend(groups.clone().map(|group| group[0].0[depth]));
            if labels.is_empty() {
                continue;
            }
            let base = builder.place(&labels);
            builder.units[node].base = base as u32;
            for (label, group) in labels.iter().zip(groups) {
                let child = base ^ usize::from(*label);
                builder.take(child, node as u32);
                open.push((child, depth + 1, group));
            }
        }
        Self { units: builder.units }
    }

    /// Child of a node for a byte.
    #[inline]
    pub fn child(&self, node: Node, byte: u8) -> Option<Node> {
        let at = self.units[node.0 as usize].base ^ u32::from(byte);
        (self.units[at as usize].parent == node.0).then_some(Node(at))
    }

    /// Id of the text that ends at a node.
    #[inline]
    pub fn id(&self, node: Node) -> Option<u32> {
        let id = self.units[node.0 as usize].id;
        (id != NONE).then_some(id)
    }

    /// Id of a text.
    pub fn get(&self, text: &[u8]) -> Option<u32> {
        self.id(text.iter().try_fold(Self::ROOT, |node, byte| self.child(node, *byte))?)
    }
}

#[derive(Default)]
struct Builder {
    units: Vec<Unit>,
    /// For each block, a bit for each free unit.
    free: Vec<[u64; BLOCK / 64]>,
}

impl Builder {
    fn add_block(&mut self) {
        self.units.resize(self.units.len() + BLOCK, FREE);
        self.free.push([u64::MAX; BLOCK / 64]);
    }

    fn take(&mut self, at: usize, parent: u32) {
        self.units[at].parent = parent;
        self.free[at / BLOCK][at % BLOCK / 64] &= !(1 << (at % 64));
    }

    /// Finds a base for children with these labels.
    fn place(&mut self, labels: &[u8]) -> usize {
        let first = self.free.len().saturating_sub(SEARCHED_BLOCKS);
        for block in first..self.free.len() {
            if let Some(base) = place_in(&self.free[block], labels) {
                return block * BLOCK + base;
            }
        }
        self.add_block();
        (self.free.len() - 1) * BLOCK
    }
}

fn place_in(free: &[u64; BLOCK / 64], labels: &[u8]) -> Option<usize> {
    let is_free = |at: usize| free[at / 64] >> (at % 64) & 1 == 1;
    for (number, word) in free.iter().enumerate() {
        let mut bits = *word;
        while bits != 0 {
            let free = number * 64 + bits.trailing_zeros() as usize;
            let base = free ^ usize::from(labels[0]);
            if labels[1..].iter().all(|label| is_free(base ^ usize::from(*label))) {
                return Some(base);
            }
            bits &= bits - 1;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Key;

    #[test]
    fn each_text_has_its_id() {
        let mut rng = Key::new(1).rng();
        let mut texts: Vec<String> = (0..=255_u8).map(|byte| char::from(byte).to_string()).collect();
        for _ in 0..20_000 {
            let length = 1 + rng.below(6);
            texts.push((0..length).map(|_| ['a', 'b', '\0', 'é', '▁', '中'][rng.below(6) as usize]).collect());
        }
        texts.push(String::new());
        texts.sort_unstable();
        texts.dedup();
        let trie = ByteTrie::new(texts.iter().map(String::as_str));
        assert!(texts.iter().zip(0..).all(|(text, id)| trie.get(text.as_bytes()) == Some(id)));
        for seed in 0..20_000 {
            let mut rng = Key::new(seed).rng();
            let text: Vec<u8> = (0..rng.below(8)).map(|_| b"ab\0\xc3\xa9\xff"[rng.below(6) as usize]).collect();
            let expected = texts.binary_search_by(|other| other.as_bytes().cmp(&text)).ok().map(|id| id as u32);
            assert_eq!(trie.get(&text), expected, "{text:?}");
        }
        assert_eq!(ByteTrie::new(std::iter::empty()).get(b""), None);
        let size = trie.units.len();
        assert!(size < 200_000, "{size} units");
    }
}
