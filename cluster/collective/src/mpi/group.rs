use super::library::{Communicator, buffer};
use crate::group::check_root;
use crate::{Group, Result};

/// All ranks of the world.
pub struct MpiGroup(Communicator);

impl MpiGroup {
    pub fn new(world: Communicator) -> Self {
        Self(world)
    }

    fn receive_all(&self, from: usize) -> Result<Vec<u8>> {
        let mut length = [0; 8];
        self.0.receive(&mut length, from)?;
        let mut bytes = buffer("gather", u64::from_le_bytes(length))?;
        self.0.receive(&mut bytes, from)?;
        Ok(bytes)
    }
}

impl Group for MpiGroup {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn world(&self) -> usize {
        self.0.size()
    }

    fn name(&self) -> &'static str {
        "mpi"
    }

    fn all_reduce_sum_f64(&mut self, values: &mut [f64]) -> Result<()> {
        self.0.all_reduce(values)
    }

    fn broadcast_bytes(&mut self, bytes: &mut Vec<u8>, root: usize) -> Result<()> {
        check_root("broadcast", root, self.world())?;
        let mut length = (bytes.len() as u64).to_le_bytes();
        self.0.broadcast(&mut length, root)?;
        if self.rank() != root {
            *bytes = buffer("broadcast", u64::from_le_bytes(length))?;
        }
        self.0.broadcast(bytes, root)
    }

    fn gather_bytes(&mut self, bytes: &[u8], root: usize) -> Result<Option<Vec<Vec<u8>>>> {
        check_root("gather", root, self.world())?;
        if self.rank() != root {
            self.0.send(&(bytes.len() as u64).to_le_bytes(), root)?;
            self.0.send(bytes, root)?;
            return Ok(None);
        }
        let all = (0..self.world()).map(|from| if from == root { Ok(bytes.to_vec()) } else { self.receive_all(from) });
        all.collect::<Result<_>>().map(Some)
    }

    fn barrier(&mut self) -> Result<()> {
        self.0.barrier()
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.0.finalize()
    }
}
