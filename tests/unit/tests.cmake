# The world once more with host identities made different, so that everything goes over TCP; and
# 256 ranks of both kinds.
sc_add_test(test_world_tcp
    SOURCES test_world.c
    DEFINITIONS WORLD_OVER_TCP=1
    LINK_OPTIONS LINKER:--wrap=sc_thread_host_id)
sc_add_test(test_world_many
    SOURCES test_world_many.c
    LINK_OPTIONS LINKER:--wrap=sc_thread_host_id
    TIMEOUT 120
    SERIAL)
