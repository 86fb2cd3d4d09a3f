"""What carries an attack out."""

import asyncio

from bench.attacks.attack import Attack, Target, carry_out


async def test_an_attack_has_begun_once_each_connection_has_its_bytes() -> None:
    """Those of a large body take longer to make than small chats take."""
    prepared = 0
    begun = asyncio.get_running_loop().create_future()

    async def act(target: Target) -> None:
        nonlocal prepared
        prepared += 1
        await asyncio.Event().wait()

    attack = Attack("waits", act, connections=3)
    attacking = asyncio.create_task(
        carry_out(attack, Target("", "", ""), lambda: begun.set_result(prepared))
    )
    num_prepared = await begun
    attacking.cancel()

    assert num_prepared == attack.connections
