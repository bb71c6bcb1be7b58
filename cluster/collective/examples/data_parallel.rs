//! Data-parallel training of a tch model. Start it with `mpirun -n 4 target/release/examples/data_parallel`, or without
//! `mpirun` for one rank.

use lambert_collective::{all_reduce, local, mpi, world};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let is_mpi_rank = world::detect().is_some();
    let mut endpoints = if is_mpi_rank { mpi::init(mpi::MpiOptions::default())? } else { local::single() };
    let (rank, world_size) = (endpoints.group.rank() as i64, endpoints.group.world_size() as i64);

    // The seed gives every rank the same weights and samples; rank r trains on samples r, r + world_size, ...
    tch::manual_seed(1);
    let variables = nn::VarStore::new(Device::Cpu);
    let linear = |name, inputs, outputs| nn::linear(variables.root() / name, inputs, outputs, Default::default());
    let model = nn::seq().add(linear("first", 8, 32)).add_fn(Tensor::tanh).add(linear("second", 32, 1));
    let inputs = Tensor::randn([1200, 8], (Kind::Float, Device::Cpu));
    let targets = inputs.sum_dim_intlist([1i64].as_slice(), true, Kind::Float).sin();
    let own_inputs = inputs.slice(0, rank, 1200, world_size);
    let own_targets = targets.slice(0, rank, 1200, world_size);

    let mut optimizer = nn::Adam::default().build(&variables, 1e-2)?;
    for step in 0..=100 {
        optimizer.zero_grad();
        let loss = (model.forward(&own_inputs) - &own_targets).square().sum(Kind::Float) / 1200.0;
        loss.backward();

        for variable in variables.trainable_variables() {
            let mut gradient = Vec::<f32>::try_from(variable.grad().flatten(0, -1))?;
            all_reduce(&mut *endpoints.reducer, &mut gradient, None)?;
            variable.grad().copy_(&Tensor::from_slice(&gradient).view_as(&variable));
        }
        optimizer.step();

        let mut sum = [loss.double_value(&[])];
        endpoints.group.all_reduce_sum_f64(&mut sum)?;
        if rank == 0 && step % 25 == 0 {
            println!("step {step}: loss {:.4}", sum[0]);
        }
    }
    Ok(endpoints.finish()?)
}
